"""The logbook, read back with TensorBoard's own reader."""

import json

import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from sqrtvocab.training import Logbook, markdown_table, read_metrics


def events(folder) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_scalars_go_to_both(tmp_path):
    book = Logbook(tmp_path)
    book.scalars(1, {"loss/train": 2.5, "accuracy/overall": 0.25}, images=256, minutes=0.1)
    book.scalars(2, {"loss/train": 2.0}, images=512, minutes=0.2)
    book.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "images": 256, "minutes": 0.1, "loss/train": 2.5, "accuracy/overall": 0.25},
        {"step": 2, "images": 512, "minutes": 0.2, "loss/train": 2.0},
    ]
    seen = events(tmp_path)
    assert set(seen.Tags()["scalars"]) == {"loss/train", "accuracy/overall"}
    assert [(event.step, event.value) for event in seen.Scalars("loss/train")] == [(1, 2.5), (2, 2.0)]


def test_text_figures_and_hparams_stay_in_one_run(tmp_path):
    book = Logbook(tmp_path / "run")
    book.text("config", markdown_table({"lr": 0.001, "head": "grouped"}))
    book.figure("examples", Figure(figsize=(1, 1)), 3)
    book.scalars(3, {"accuracy/overall": 0.5})
    book.hparams(
        {"lr": 0.001, "head": "grouped", "out": tmp_path, "only": ("a",), "none": None},
        {"accuracy/overall": 0.5},
    )
    book.close()
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    assert list(runs.Runs()) == ["run"]
    seen = events(tmp_path / "run")
    assert seen.Tags()["images"] == ["examples"]
    assert b"| head | grouped |" in seen.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert set(seen.PluginTagToContent("hparams")) == {
        "_hparams_/experiment",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
    }


def test_going_on_drops_what_came_after_the_checkpoint(tmp_path):
    book = Logbook(tmp_path)
    for step in range(1, 6):
        book.scalars(step, {"loss/train": float(step)})
    book.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "loss/tr')  # killed in mid-line
    book = Logbook(tmp_path, start_step=3)
    for step in range(4, 6):
        book.scalars(step, {"loss/train": step * 10.0})
    book.close()
    expected = [(1, 1), (2, 2), (3, 3), (4, 40), (5, 50)]
    assert [(row["step"], row["loss/train"]) for row in read_metrics(tmp_path / "metrics.jsonl")] == expected
    assert [(event.step, event.value) for event in events(tmp_path).Scalars("loss/train")] == expected


def test_other_ranks_write_nothing(tmp_path, capsys):
    book = Logbook(tmp_path, enabled=False)
    book.scalars(1, {"loss/train": 1.0})
    book.text("a", "b")
    book.figure("c", Figure(), 1)
    book.hparams({}, {})
    book.progress(["line"])
    book.say("line")
    book.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_the_live_line(tmp_path, capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    book = Logbook(tmp_path)
    book.progress(["one"])
    book.progress(["two"])
    book.say("a line that stays")
    book.close()
    err = capsys.readouterr().err
    if terminal:
        assert err.startswith("\rone")
        assert "\rtwo" in err
        assert "\r\x1b[Ka line that stays\n" in err
    else:
        assert err == "one\na line that stays\n"  # a log file is spared all but a line now and then


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(80, "step 5  loss 1.5  ETA 0:10"), (17, "step 5  loss 1.5"), (10, "step 5"), (4, "ste")],
)
def test_the_live_line_fits_the_terminal(tmp_path, capsys, monkeypatch, columns, shown):
    """The most important first, and no phrase cut in two."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    book = Logbook(tmp_path)
    book.progress(["step 5", "loss 1.5", "ETA 0:10"])
    assert capsys.readouterr().err == f"\r{shown:<{columns - 1}}"
    book.close()


def test_records_are_plain_json(tmp_path):
    book = Logbook(tmp_path)
    book.scalars(1, {"loss/train": 1 / 3})
    book.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss/train"] == 1 / 3
