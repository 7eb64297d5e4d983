"""What the tests of faults share: loops over all the places where a command can be disturbed."""

import contextlib
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from injection import FREEING, Disturbed, contents, restore
from matplotlib.figure import Figure
from trainers import Trainer, drafts, last_line, train_classifier, train_lm, train_pictures

from lm.stories.write import stories
from lm.text.tokenizer import END
from shapesgen import Recipe

SECONDS = 300  # nothing here takes longer than a second or two of a free core: what does is a hang


@pytest.fixture
def disturb(forked, tmp_path: Path) -> Callable[..., int]:
    """`disturb(how, program, main, argv, inside)`: disturb a command at every file operation below the folder
    `inside` (`every`: at every so many), each time beginning with what that folder holds now; then call it
    again: it must end where a call that was left alone ends. Returns the number of operations tried.

    kill: one call is watched, which tells what a kill would leave at each operation. full: a call for each,
    with a disk that is full from there on, which must end with exit code 1 or 2 and say so in one line. What
    was left before is not tried again.

    `result()` is what calls are compared by; every byte below `inside` by default.
    """

    def everywhere(
        how: Literal["kill", "full"],
        program: str,
        main: Callable[[], int],
        argv: Sequence[object],
        inside: Path,
        result: Callable[[], Any] | None = None,
        every: int = 1,
    ) -> int:
        def call(**options: Any) -> Any:
            return forked(Disturbed(main, inside, **options), argv, tmp_path, {}).wait(SECONDS)

        result = result or (lambda: contents(inside))
        before, log = contents(inside), tmp_path / "steps"
        watched = call(log=log)
        assert watched.code == 0, watched.err
        steps, expected = pickle.loads(log.read_bytes()), result()
        tried = [at for at, step in enumerate(steps) if how == "kill" or not step.place.startswith(FREEING)]
        seen: list[dict[str, bytes]] = []
        for at in tried[::every]:
            place = f"{how} at {at}, {steps[at].place}"
            if how == "full":
                restore(inside, before)
                failed = call(how="full", at=at)
                assert failed.code in (1, 2), (place, failed)
                line = last_line(failed, program)  # torch.save gives another reason than the system's
                assert "No space left on device" in line or "(is the disk full?)" in line, (place, failed)
            left = steps[at].left if how == "kill" else contents(inside)
            if left in seen:
                continue
            seen.append(left)
            restore(inside, left)
            again = call()
            assert again.code == 0, f"{place}: {again.err}"
            assert "WARNING" not in again.err, f"{place}: {again.err}"
            assert result() == expected, place
            assert drafts(inside) == [], place
        return len(tried[::every])

    return everywhere


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


@pytest.fixture
def apart(forked, tmp_path: Path) -> Callable[[Callable[[], object]], str]:
    """`apart(work)`: what `work()` prints, in a process of its own: hundreds of calls leave much behind."""

    def run(work: Callable[[], object]) -> str:
        def main() -> int:
            work()
            return 0

        ended = forked(main, [], tmp_path, {}).wait(20 * SECONDS)
        assert ended.code == 0, ended.err
        return ended.out

    return run


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
    """Checkpoints of some kilobytes, figures of some dots, nothing measured, nothing synced; and the compiled
    renderer loaded before any fork."""
    monkeypatch.setattr("classifier.cnn.FILTERS", (2, 2, 2))
    monkeypatch.setattr("classifier.cnn.EMBEDDING", 4)
    monkeypatch.setattr("sqrtvocab.training.logbook.Logbook.figure", lambda *arguments: None)
    for figure in (
        "classifier.report.example_grid", "classifier.report.confused_grid",
        "classifier.evaluate.confused_grid", "classifier.evaluate.reliability_figure",
        "classifier.evaluate.group_confusion_figure", "sqrtvocab.training.score_figures.reliability_figure",
        "sqrtvocab.training.score_figures.group_confusion_figure",
    ):  # fmt: skip
        monkeypatch.setattr(figure, lambda *arguments: Figure((0.1, 0.1)))
    for module in ("report", "evaluate"):
        monkeypatch.setattr(f"classifier.{module}.confusion_figures", lambda *arguments: {})
    monkeypatch.setattr("sqrtvocab.training.Runtime.peak_memory", lambda self: 0)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    Recipe().render([0], [0])


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve stories."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text("".join(f"{story}\n{END}\n" for story in stories("train", 12)))
    return path


@pytest.fixture(params=["train_lm", "train_classifier"])
def trainer(request: pytest.FixtureRequest, small_models: None, text: Path, tmp_path: Path) -> Trainer:
    """Each trainer; also "pictures", which is `train_classifier` on a folder of them."""
    if request.param == "train_lm":
        return train_lm(text, tmp_path / "cache")
    if request.param == "pictures":
        return train_pictures(tmp_path / "pictures", tmp_path / "cache")
    return train_classifier()
