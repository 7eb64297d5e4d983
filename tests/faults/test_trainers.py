"""`train_classifier` and `train_lm` killed, on full disks, and with damaged files: nothing lost, nothing
silent, no traceback."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from injection import Damage, damages
from trainers import SECONDS, Trainer, outcome

slow = pytest.mark.slow

# ---- kills and full disks ----


both = pytest.mark.parametrize("how", ["kill", "full"])
sample_or_all = pytest.mark.parametrize("every", [70, pytest.param(1, marks=slow)])


@both
@sample_or_all
def test_a_run_disturbed_anywhere_goes_on(how, every, trainer, disturb, tally, tmp_path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    run = folder / "r"
    tries = disturb(
        how, trainer.program, trainer.main, trainer.argv(run), folder, lambda: outcome(run), every
    )
    tally(f"{trainer.program} disturbed ({how})", tries)


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
@both
@sample_or_all
def test_tokenising_disturbed_anywhere_begins_again(how, every, trainer, disturb, tally, tmp_path) -> None:
    run = tmp_path / "r"
    trainer.cache.mkdir()

    def train() -> int:
        shutil.rmtree(run, ignore_errors=True)
        return trainer.main()

    argv = trainer.argv(run, 1)
    tries = disturb(how, "train_lm", train, argv, trainer.cache, lambda: outcome(run), every)
    tally(f"tokenising disturbed ({how})", tries)


# ---- damage ----


@pytest.fixture
def finished(trainer: Trainer, forked, tmp_path: Path) -> Path:
    """A run of two steps."""
    run = tmp_path / "finished"
    result = forked(trainer.main, trainer.argv(run), tmp_path, {}).wait(SECONDS)
    assert result.code == 0, result.err
    return run


@pytest.mark.parametrize(
    "trainer", ["train_lm", "train_classifier", pytest.param("pictures", marks=slow)], indirect=True
)
@pytest.mark.parametrize("count", [6, pytest.param(260, marks=slow)])
def test_damage_is_found_or_harmless(count, trainer, finished, invoke, tally, tmp_path) -> None:
    """Of every file of a run and of its cache: the results are those of an undamaged run, or the file is
    named."""

    def go_on(run: Path) -> Any:
        return invoke(trainer.main, trainer.argv(run, 3))

    def score(run: Path) -> Any:
        return invoke(trainer.score, [run, "--device", "cpu", *more])

    more = ["--samples", 0] if trainer.program == "train_lm" else ["--workers", 0]
    sound = shutil.copytree(finished, tmp_path / "sound")
    assert go_on(sound).code == 0
    expected = outcome(sound, ("last",))
    shutil.copytree(finished, tmp_path / "scored")
    assert score(tmp_path / "scored").code == 0
    scores = json.loads((tmp_path / "scored" / trainer.scores).read_text())["loss"]
    files = sorted(path for path in finished.rglob("*") if path.is_file() and "events" not in path.name)
    if trainer.cache is not None:
        cached = trainer.cache.rglob("*")
        files += sorted(path for path in cached if path.is_file() and path.suffix != ".lock")
    damaged = tmp_path / "damaged"
    every = damages(files, count if count > 4 * len(files) else 4 * len(files), seed=count)
    for damage in random.Random(count).sample(every, count):
        shutil.copytree(finished, damaged)
        is_of_run = damage.path.is_relative_to(finished)
        path = damaged / damage.path.relative_to(finished) if is_of_run else damage.path
        before = Damage(path, damage.kind, damage.place).apply()
        for act in (score, go_on):
            answer = act(damaged)
            assert "Traceback" not in answer.err, (str(damage), answer.err)
            is_named = path.name in answer.err
            if answer.code:
                assert answer.code in (1, 2), (str(damage), answer)
                assert is_named, (str(damage), answer.err)
            elif act is score:
                assert json.loads((damaged / trainer.scores).read_text())["loss"] == scores, str(damage)
            else:
                found = outcome(damaged, ("last",))
                if is_named and "WARNING" in answer.err:  # lost, but said
                    found["metrics"] = expected["metrics"]
                assert found == expected, str(damage)
        path.write_bytes(before)
        shutil.rmtree(damaged)
    tally(f"files of {trainer.program} damaged{' (pictures)' if trainer.has_pictures else ''}", count)


def change_state(run: Path, change: Callable[[dict[str, Any]], object], is_sealed: bool) -> None:
    path = run / "last" / "state.json"
    state = json.loads(path.read_text())
    if not is_sealed:
        del state["seal"]
    change(state)
    path.write_text(json.dumps(state))


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
@pytest.mark.parametrize(
    ("change", "is_sealed"),
    [
        (lambda state: state.update(step=1), True),
        (lambda state: state.update(sha256={}), True),
        (lambda state: state.update(sha256={}), False),
        (lambda state: state.update(spet=state.pop("step")), True),
        (lambda state: state.update(spet=state.pop("step")), False),
        (lambda state: state.pop("best"), False),
        (lambda state: state.pop("minutes"), False),
    ],
)
def test_a_changed_state_falls_back(change, is_sealed, trainer, finished, invoke) -> None:
    change_state(finished, change, is_sealed)
    answer = invoke(trainer.main, trainer.argv(finished))
    assert answer.code == 0, answer.err
    assert f"WARNING: checkpoint {finished}/last/state.json has changed since it was written" in answer.err
    assert "last.previous, step 1" in answer.err


def test_older_checkpoints_are_read(trainer, finished, invoke, tmp_path) -> None:
    """Before there were seals and checksums of lines."""
    old = shutil.copytree(finished, tmp_path / "old")
    for path in (*old.rglob("state.json"), old / "config.json"):
        document = json.loads(path.read_text())
        del document["seal"]
        document.pop("recorded", None)  # how long metrics.jsonl was
        path.write_text(json.dumps(document))
    rows = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["crc"]
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (old / "order.json").exists():
        (old / "order.json").write_text(json.dumps(json.loads((old / "order.json").read_text())["order"]))
    for run in (old, finished):
        answer = invoke(trainer.main, trainer.argv(run, 3))
        assert (answer.code, "WARNING" in answer.err) == (0, False), answer.err
    assert outcome(old) == outcome(finished)


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
def test_a_missing_order_is_missed(trainer, finished, invoke) -> None:
    """Its groups would else silently be those of the indices."""
    path = finished / "order.json"
    path.unlink()
    for main, argv in (
        (trainer.score, [finished, "--device", "cpu", "--samples", 0]),
        (trainer.main, trainer.argv(finished, 3)),
    ):
        answer = invoke(main, argv)
        assert answer.code == 2, answer
        assert f": {path}: missing, and with it what a group of tokens is; " in answer.err
    assert not path.exists()


DOCUMENTS = {
    "deep": "[" * 100_000,
    "deep in an object": '{"seal": ' * 5_000,
    "almost too deep": '{"seal": "x", "a": ' + "[" * 990 + "]" * 990 + "}",
    "a list": "[]",
    "a number": "7",
    "an empty object": "{}",
    "no text": b"\xff\xfe\x00",
    "a folder": None,
}


@pytest.mark.parametrize("trainer", ["train_lm", pytest.param("train_classifier", marks=slow)], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "last/state.json",
        *(
            pytest.param(name, marks=slow)
            for name in ("best/state.json", "order.json", "tokenizer.json", "metrics.jsonl")
        ),
    ],
)
def test_any_document_in_place_of_ours(name, trainer, finished, invoke, tally) -> None:
    path = finished / name
    if not path.exists():
        pytest.skip("not a file of this trainer")
    shutil.rmtree(finished / "last.previous")
    for what, document in DOCUMENTS.items():
        path.rmdir() if path.is_dir() else path.unlink()
        if document is None:
            path.mkdir()
        else:
            path.write_bytes(document if isinstance(document, bytes) else document.encode())
        for main, argv in (
            (trainer.main, trainer.argv(finished, 3)),
            (trainer.main, ["--resume", finished]),
            (trainer.score, [finished, "--device", "cpu"]),
        ):
            answer = invoke(main, argv)
            assert "Traceback" not in answer.err, (what, answer.err)
            reads_it = answer.code or "WARNING" in answer.err
            assert not reads_it or path.name in answer.err, (what, answer.err)
            if name == "config.json":
                assert answer.code == 2, (what, answer)
    tally("documents of another kind", len(DOCUMENTS))
