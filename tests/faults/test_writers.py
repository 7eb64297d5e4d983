"""The commands that write beside the trainers, killed or on a full disk at each file operation: scores, the
judge's journal, decoded pictures. Called again, they end where a call that was left alone ends."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injection import KILLED, Disturbed
from PIL import Image
from trainers import SECONDS, drafts, last_line, outcome, train_lm

import classifier.cli
import lm.cli
import lm.judge.command

GRADES = '{"grammar": 7, "creativity": 6, "consistency": 8, "plot": 5, "age": 6}'


@pytest.fixture
def disturb(operations, forked, tmp_path: Path) -> Callable[..., int]:
    """`disturb(how, program, main, argv, inside, result)`: begin with what `inside` holds now, disturb the
    command at each file operation there, call it again; `result()` must be that of an undisturbed call."""

    def everywhere(how: str, program: str, main, argv, inside: Path, result: Callable[[], Any]) -> int:
        before = shutil.copytree(inside, tmp_path / "before")

        def restore() -> None:
            shutil.rmtree(inside)
            shutil.copytree(before, inside)

        steps = operations(main, argv, inside)
        expected, tries = result(), 0
        for at, step in enumerate(steps):
            if how == "full" and step.startswith(("unlink", "rmdir")):
                continue
            restore()
            place = f"{how} at {at}, {step}"
            disturbed = forked(Disturbed(main, inside, at, how), argv, tmp_path, {}).wait(SECONDS)
            if how == "kill":
                assert disturbed.code == KILLED, (place, disturbed)
            else:
                assert disturbed.code in (1, 2), (place, disturbed)
                assert "No space left on device" in last_line(disturbed, program), place
            again = forked(main, argv, tmp_path, {}).wait(SECONDS)
            assert again.code == 0, f"{place}: {again.err}"
            assert "WARNING" not in again.err, f"{place}: {again.err}"
            assert result() == expected, place
            assert drafts(inside) == [], place
            tries += 1
        return tries

    return everywhere


both = pytest.mark.parametrize("how", ["kill", "full"])


@pytest.mark.slow
@both
def test_scores(how, trainer, disturb, forked, tally, tmp_path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    assert forked(trainer.main, trainer.argv(folder / "r"), tmp_path, {}).wait(SECONDS).code == 0
    program = trainer.program.replace("train", "eval")
    argv = [folder / "r", "--device", "cpu", *(["--workers", 0] if trainer.cache is None else [])]

    def scores() -> Any:
        return json.loads((folder / "r" / trainer.scores).read_text())

    tally(f"{program} disturbed ({how})", disturb(how, program, trainer.score, argv, folder, scores))


@pytest.mark.slow
@both
def test_the_journal_of_the_judge(
    how, small_models, text, disturb, forked, tally, monkeypatch, tmp_path
) -> None:
    class Server:
        def ask(self, messages: Any, **options: Any) -> str:
            return GRADES if len(messages) > 1 else "A fine story."

    monkeypatch.setattr(lm.judge.command, "server_from_environment", lambda *arguments: Server())
    trainer, folder = train_lm(text, tmp_path / "cache"), tmp_path / "inside"
    folder.mkdir()
    assert forked(trainer.main, trainer.argv(folder / "r", 1), tmp_path, {}).wait(SECONDS).code == 0
    (tmp_path / "openings.txt").write_text("Once\nOne day\n")
    argv = [folder / "r", "--prompts", tmp_path / "openings.txt", "--completions", 1, "--concurrency", 1]
    argv += ["--max-tokens", 3, "--device", "cpu"]

    def graded() -> list[bytes]:
        return [(folder / "r" / f"judge.{kind}").read_bytes() for kind in ("jsonl", "json")]

    tries = disturb(how, "judge_lm", lm.cli.judge_main, argv, folder, graded)
    tally(f"judge_lm disturbed ({how})", tries)


@pytest.mark.slow
@both
def test_decoded_pictures(how, small_models, disturb, tally, monkeypatch, tmp_path) -> None:
    cache, pictures, run = tmp_path / "cache", tmp_path / "pictures", tmp_path / "r"
    cache.mkdir()
    monkeypatch.setenv("SQRTVOCAB_CACHE", str(cache))
    draw = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (pictures / name).mkdir(parents=True)
        for number in range(10):
            pixels = draw.integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(pictures / name / f"{number}.png")

    def train() -> int:
        shutil.rmtree(run, ignore_errors=True)
        return classifier.cli.train_main()

    argv = ["--data", pictures, "--image-size", 8, "--batch-size", 4, "--workers", 0, "--device", "cpu"]
    argv += ["--max-steps", 1, "--out", run]
    tries = disturb(how, "train_classifier", train, argv, cache, lambda: outcome(run))
    tally(f"pictures decoded, disturbed ({how})", tries)
