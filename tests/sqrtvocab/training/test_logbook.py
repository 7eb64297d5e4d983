"""The logbook, read back with TensorBoard's own reader."""

import json
import warnings

import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from sqrtvocab.errors import RunError
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


@pytest.fixture
def written(tmp_path):
    """A `metrics.jsonl` of five records."""
    book = Logbook(tmp_path)
    for step in range(1, 6):
        book.scalars(step, {"loss/train": step + 0.5})
    book.close()
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize(
    ("damage", "line", "left"),
    [
        (lambda data: data.replace(b"2.5", b"3.5"), 2, [1, 3, 4, 5]),  # still a number
        (lambda data: data.replace(b"2.5", b"\xff.5"), 2, [1, 3, 4, 5]),  # no UTF-8
        (lambda data: data.replace(b'"step": 4', b'"stop": 4'), 4, [1, 2, 3, 5]),
        (lambda data: data.replace(b"\n", b" ", 1), 1, [3, 4, 5]),  # two records in a line
        (lambda data: data[:60] + bytes(60) + data[120:], 2, [1, 4, 5]),  # two lines, and what parts them
        (lambda data: data[:-30] + bytes(30), 5, [1, 2, 3, 4]),  # the last line break, too
        (lambda data: b"[" * 100_000 + data[data.index(b"\n") :], 1, [2, 3, 4, 5]),
    ],
)
def test_damaged_records_are_named_and_set_aside(written, capsys, damage, line, left):
    whole = read_metrics(written)
    recorded = written.stat().st_size
    written.write_bytes(damage(written.read_bytes()))
    held = written.read_bytes().split(b"\n")
    Logbook(written.parent, start_step=5, recorded=recorded).close()
    told = capsys.readouterr().err
    assert f"WARNING: {written}: line {line} is damaged: " in told
    assert f"set aside in {written.parent}/metrics.damaged" in told
    aside = (written.parent / "metrics.damaged").read_bytes().split(b"\n")[:-1]
    assert aside == [held[line - 1]]
    kept = read_metrics(written)
    assert capsys.readouterr().err == ""
    assert kept == [record for record in whole if record["step"] in left]


@pytest.mark.parametrize("cut", [1, 40, 200, 10_000])
def test_records_that_are_gone_are_missed(written, capsys, cut):
    recorded = written.stat().st_size
    written.write_bytes(written.read_bytes()[: max(0, recorded - cut)])
    Logbook(written.parent, start_step=5, recorded=recorded).close()
    assert f"WARNING: {written}: " in capsys.readouterr().err


def test_what_a_kill_has_torn_is_no_damage(written, capsys):
    recorded = written.stat().st_size
    with written.open("ab") as file:
        file.write(b'{"step": 6, "loss/tr')
    Logbook(written.parent, start_step=5, recorded=recorded).close()
    assert capsys.readouterr().err == ""
    assert written.stat().st_size == recorded


def test_reading_damaged_records_says_so(written, capsys):
    written.write_bytes(written.read_bytes().replace(b"2.5", b"3.5"))
    assert [record["step"] for record in read_metrics(written)] == [1, 3, 4, 5]
    assert capsys.readouterr().err == f"WARNING: {written}: line 2 is damaged and left out\n"


def test_records_of_older_versions_have_no_checksum(written):
    whole = read_metrics(written)
    written.write_text("".join(json.dumps(record) + "\n" for record in whole))
    Logbook(written.parent, start_step=5).close()
    assert read_metrics(written) == whole


def test_a_full_disk_is_told_at_once(written, monkeypatch):
    book = Logbook(written.parent, start_step=5)
    monkeypatch.setattr(book._metrics, "_file", open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    with pytest.raises(RunError, match=rf"cannot write {written}: No space left on device"):
        book.scalars(6, {"loss/train": 1.0})
    book.close()
    assert [record["step"] for record in read_metrics(written)] == [1, 2, 3, 4, 5]


def test_words_that_are_no_text(tmp_path):
    book = Logbook(tmp_path)
    book.text("config", "a path: \udcff")
    book.hparams({"out": "\udcff"}, {})
    book.close()
    assert b"a path: \\udcff" in events(tmp_path).Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_letters_that_the_font_lacks_are_no_warning(tmp_path):
    figure = Figure(figsize=(1, 1))
    figure.suptitle("한글")
    book = Logbook(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        book.figure("confused_pairs", figure, 1)
    book.close()
