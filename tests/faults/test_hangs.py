"""Every failed run ends by itself: two in a folder, a folder taken away, workers, ranks that stop or die."""

import multiprocessing.util
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from injection import Damage
from trainers import SECONDS, TWELVE, Trainer, last_line, metrics, wait_for

import classifier.cli
import shapesgen.cli
from sqrtvocab.training import load_checkpoint, ranks, run

slow = pytest.mark.slow
ENDS_WITHIN = 30  # seconds, in which a run that has failed ends by itself
# Both trainers share the frame that is tested; the other one has its turn with the slow tests.
one_quick = pytest.mark.parametrize(
    "trainer", ["train_lm", pytest.param("train_classifier", marks=slow)], indirect=True
)


@one_quick
def test_two_runs_do_not_share_a_folder(trainer, forked, tmp_path) -> None:
    out = tmp_path / "r"
    argv = [*trainer.flags, "--epochs", 10_000, "--eval-every", 2, "--resume", "auto", "--out", out]
    first = forked(trainer.main, argv, tmp_path, {})
    wait_for(lambda: (out / "last").exists())
    first.kill(signal.SIGSTOP)  # it is there all the same
    second = forked(trainer.main, argv, tmp_path, {}).wait(SECONDS)
    assert second.code == 2, second.err
    assert second.err.startswith(
        f"{trainer.program}: --out {out}: in use by another process ({first.pid} on "
    )
    assert len(second.err.splitlines()) == 1
    first.kill(signal.SIGKILL)
    first.wait()
    after = forked(trainer.main, [*argv, "--max-steps", 1], tmp_path, {}).wait(SECONDS)  # at once
    assert after.code == 0, after.err


@one_quick
def test_two_runs_begun_together(trainer, together, tmp_path) -> None:
    for turn in range(3):
        results = together(trainer.main, [trainer.argv(tmp_path / f"r{turn}")] * 2)
        for result in results:
            assert result.code == 0 or last_line(result, trainer.program).count("another process"), result.err
        assert 0 in [result.code for result in results]
        assert [row["step"] for row in metrics(tmp_path / f"r{turn}")] == [1, 1, 2, 2]


@one_quick
def test_a_run_folder_that_is_taken_away(trainer, forked, tmp_path) -> None:
    out = tmp_path / "r"
    argv = [*trainer.flags, "--epochs", 10_000, "--eval-every", 5, "--out", out]
    process = forked(trainer.main, argv, tmp_path, {})
    wait_for(lambda: (out / "last").exists())
    out.rename(tmp_path / "elsewhere")
    result = process.wait(ENDS_WITHIN)
    assert result.code == 1, result
    assert last_line(result, trainer.program).endswith(
        f"{out}: the run folder is gone; nothing can be saved any more"
    )
    assert not out.exists()
    assert load_checkpoint(tmp_path / "elsewhere", "last").state["step"] >= 5


def ended_as_by_the_interpreter(main: Callable[[], int]) -> Callable[[], int]:
    """`main`, and what Python does before a process ends: it joins the processes that `multiprocessing` has
    started. (The forked processes of the tests leave without it.)"""

    def run() -> int:
        code = main()
        multiprocessing.util._exit_function()
        return code

    return run


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_damaged_image_ends_it_all(command, small_models, forked, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(
        "classifier.images.shapes.check_labels", lambda images, folder: None
    )  # which would find it
    images, run = tmp_path / "images", tmp_path / "r"
    render = ["render", "--out", images, *TWELVE, "--workers", 1]
    assert forked(shapesgen.cli.main, render, tmp_path, {}).wait().code == 0
    train = [
        *TWELVE, "--data", images, "--batch-size", 4, "--accumulate", 1, "--device", "cpu", "--max-steps", 3,
        "--eval-images", 4, "--out", run, "--resume", "auto",
    ]  # fmt: skip
    if command == "eval":
        assert forked(classifier.cli.train_main, [*train, "--workers", 0], tmp_path, {}).wait().code == 0
    shard = next((images / "data").glob("train-*" if command == "train" else "test-*"))
    Damage(shard, "flip", 0.5).apply()
    main, argv = {
        "train": (classifier.cli.train_main, [*train, "--workers", 2]),
        "eval": (classifier.cli.eval_main, [run, "--device", "cpu", "--workers", 2]),
    }[command]
    result = forked(ended_as_by_the_interpreter(main), argv, tmp_path, {}).wait(ENDS_WITHIN)
    assert result.code == 1, result
    assert f"--data {images}: data/{shard.name}: " in last_line(result, f"{command}_classifier")


# ---- ranks ----


def start_ranks(trainer: Trainer, forked, tmp_path: Path, *flags: object) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        forked(
            trainer.main,
            [*trainer.flags, *flags],
            tmp_path,
            {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]


SPLIT = ("--head", "grouped-linear", "--vocab-parallel")


@pytest.mark.parametrize(
    ("victim", "later", "flags"),
    [
        (1, 0.0, ()),
        *(pytest.param(victim, later, (), marks=slow) for victim in (0, 1) for later in (0.02, 0.1, 0.3)),
        *(pytest.param(victim, 0.02, SPLIT, marks=slow) for victim in (0, 1)),
    ],
)
def test_a_killed_rank_ends_the_other(victim, later, flags, trainer, forked, tally, tmp_path) -> None:
    """So many seconds after its second checkpoint: in any part of a step, or in a checkpoint."""
    out = tmp_path / "r"
    flags = [*flags, "--epochs", 10_000, "--eval-every", 2, "--out", out]
    ranks = start_ranks(trainer, forked, tmp_path, *flags)
    wait_for(lambda: (out / "last.previous").exists())
    time.sleep(later)
    ranks[victim].kill(signal.SIGKILL)
    result = ranks[1 - victim].wait(ENDS_WITHIN)
    ranks[victim].wait()
    assert result.code == 1, result
    speaker = trainer.program if victim else f"{trainer.program}: rank 1"
    line = "the connection to another rank is lost: it has failed or was killed; continue with --resume auto"
    assert last_line(result, speaker) == f"{speaker}: {line}"
    assert load_checkpoint(out, "last").state["step"] >= 2
    tally("ranks killed", 1)


@slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_ends_the_other(victim, trainer, forked, tally, tmp_path) -> None:
    out = tmp_path / "r"
    ranks = start_ranks(trainer, forked, tmp_path, "--epochs", 10_000, "--eval-every", 2, "--out", out)
    wait_for(lambda: (out / "last.previous").exists())
    ranks[victim].kill(signal.SIGSTOP)
    result = ranks[1 - victim].wait(ENDS_WITHIN)
    ranks[victim].kill()
    ranks[victim].wait()
    assert result.code == 1, result
    assert (
        f"rank {1 - victim}: rank {victim} has given no sign of life for 24 s" in result.err.splitlines()[-1]
    )
    assert "Traceback" not in result.err
    assert load_checkpoint(out, "last").state["step"] >= 2
    tally("ranks stopped", 1)


@one_quick
def test_a_rank_may_be_busy_alone(trainer, forked, monkeypatch, tmp_path) -> None:
    """Longer than the patience with a rank that is silent."""
    monkeypatch.setattr(ranks, "BEAT", 0.05)
    monkeypatch.setattr(ranks, "PATIENCE", 1.0)
    save = run.Run.save_last

    def save_slowly(self: Any) -> None:
        time.sleep(3 if self.runtime.is_main else 0)
        save(self)

    monkeypatch.setattr(run.Run, "save_last", save_slowly)
    out = tmp_path / "r"
    results = [
        rank.wait(60) for rank in start_ranks(trainer, forked, tmp_path, "--max-steps", 2, "--out", out)
    ]
    assert [result.code for result in results] == [0, 0], results
