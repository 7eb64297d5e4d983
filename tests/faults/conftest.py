"""What the tests of faults share: loops over all the places where a command can be disturbed."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from injection import KILLED, Disturbed, contents, one_line
from trainers import Trainer, train_classifier, train_lm

from lm.stories.write import stories
from lm.text.tokenizer import END
from shapesgen import Recipe

SECONDS = 60  # nothing here runs longer than a second or two: what does is a hang


@pytest.fixture
def operations(forked, tmp_path: Path) -> Callable[..., list[str]]:
    """`operations(main, argv, inside)`: the file operations of an undisturbed run, which must succeed."""

    def count(main, argv, inside: Path) -> list[str]:
        log = tmp_path / "operations.json"
        result = forked(Disturbed(main, inside, log=log), argv, tmp_path, {}).wait(SECONDS)
        assert result.code == 0, result.err
        return json.loads(log.read_text())

    return count


@pytest.fixture
def everywhere(forked, operations, tmp_path: Path) -> Callable[..., Iterator[tuple[str, Any]]]:
    """`everywhere(how, main, argv, inside)`: for every file operation of the command (`every`: for every so
    many of them), begin with what `inside` holds now, disturb the command there, run it again, and compare
    with a run that was left alone. Yields the place and the result of the disturbed run."""

    def try_all(how, main, argv, inside: Path, every: int = 1) -> Iterator[tuple[str, Any]]:
        before = tmp_path / "before"
        shutil.copytree(inside, before, symlinks=True)
        steps = operations(main, argv, inside)
        expected = contents(inside)
        needs_room = [not step.startswith(("unlink", "rmdir")) for step in steps]
        for at in [at for at in range(len(steps)) if how == "kill" or needs_room[at]][::every]:
            shutil.rmtree(inside)
            shutil.copytree(before, inside, symlinks=True)
            place = f"{how} at {at}, {steps[at]}"
            yield place, forked(Disturbed(main, inside, at, how), argv, tmp_path, {}).wait(SECONDS)
            again = forked(Disturbed(main, inside), argv, tmp_path, {}).wait(SECONDS)
            assert (again.code, again.err) == (0, ""), f"{place}: {again}"
            left = contents(inside)
            names = sorted(left.keys() | expected.keys())
            assert not [name for name in names if left.get(name) != expected.get(name)], place

    return try_all


@pytest.fixture
def kill_everywhere(everywhere) -> Callable[..., int]:
    """As `everywhere`, by killing. Returns the number of tries."""

    def kill(main, argv, inside: Path, every: int = 1) -> int:
        tries = 0
        for place, result in everywhere("kill", main, argv, inside, every):
            assert result.code == KILLED, (place, result)
            tries += 1
        return tries

    return kill


@pytest.fixture
def fill_everywhere(everywhere) -> Callable[..., int]:
    """As `everywhere`, with a disk that is full from that operation on. Returns the number of tries."""

    def fill(program: str, main, argv, inside: Path, every: int = 1) -> int:
        tries = 0
        for place, result in everywhere("full", main, argv, inside, every):
            assert "No space left on device" in one_line(result, program), place
            assert result.code == 1, (place, result)
            tries += 1
        return tries

    return fill


@pytest.fixture
def together(forked, tmp_path: Path) -> Callable[..., list[Any]]:
    """`together(main, argvs)`: commands that begin at the same moment; their results."""

    def start(main, argvs: Sequence[Sequence[object]]) -> list[Any]:
        gate, opener = os.pipe()

        def wait_and_go() -> int:
            os.close(opener)
            os.read(gate, 1)  # returns when nobody holds the other end any more
            return main()

        processes = [forked(wait_and_go, argv, tmp_path, {}) for argv in argvs]
        os.close(gate)
        os.close(opener)
        return [process.wait(SECONDS) for process in processes]

    return start


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """`invoke(main, argv)`: a command in this process, for what is tried many hundred times. One that does
    not end fails the test."""

    def too_long(number: int, frame: object) -> None:
        raise AssertionError(f"{sys.argv} hangs")

    def call(main, argv: Sequence[object]) -> Answer:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, argv)])
        streams = [
            io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")
        ]
        before = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                code = main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        for stream in streams:
            stream.flush()
        return Answer(code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams))

    return call


# ---- trainers ----


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of some kilobytes, no pictures, and the compiled renderer loaded before any fork."""
    monkeypatch.setattr("classifier.cnn.CHANNELS", (3, 2, 2, 2))
    monkeypatch.setattr("classifier.cnn.EMBEDDING", 4)
    monkeypatch.setattr("sqrtvocab.training.logbook.Logbook.figure", lambda *arguments: None)
    Recipe().render([0], [0])


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve stories."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text("".join(f"{story}\n{END}\n" for story in stories("train", 12)))
    return path


@pytest.fixture(params=["train_lm", "train_classifier"])
def trainer(request: pytest.FixtureRequest, small_models: None, text: Path, tmp_path: Path) -> Trainer:
    """Each trainer."""
    return train_lm(text, tmp_path / "cache") if request.param == "train_lm" else train_classifier()
