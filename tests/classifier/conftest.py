"""Run the commands as processes of their own, without paying for `import torch` each time."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import sklearn.metrics  # noqa: F401  (imported here, so that the forked processes need not)
import torch

import classifier.evaluate
import classifier.train  # noqa: F401
import shapesgen.cli
from classifier import cli
from shapesgen import ShapesDataset
from sqrtvocab.training import Runtime

# 48 classes that differ in shape, colour and size; as many images for training as there are classes.
TINY = [
    "--only", "shape=circle,star", "--only", "pattern=solid", "--only", "rotation=0",
    "--only", "size=tiny,huge", "--only", "texture=none", "--only", "opacity=1.0", "--only", "border=solid",
    "--images-per-class", "3", "--batch-size", "4", "--accumulate", "2", "--eval-images", "12",
    "--workers", "0", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _renderer() -> None:
    """Load the compiled renderer before any fork."""
    ShapesDataset(images_per_class=3).batch([0])


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Process:
    """A command in a forked process, its output in files."""

    def __init__(
        self, main: Callable[[], int], argv: Sequence[object], folder: Path, env: dict[str, str]
    ) -> None:
        self._files = [folder / f"{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 70
        try:
            for descriptor, path in zip((1, 2), self._files, strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.setpgid(0, 0)  # as under a shell or a scheduler, which signal all processes of a job
            signal.signal(signal.SIGINT, signal.default_int_handler)
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            os.environ.update(env)
            sys.argv = ["command", *map(str, argv)]
            code = main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def kill_group(self, number: int) -> None:
        os.killpg(self.pid, number)

    def wait(self) -> Result:
        status = os.waitpid(self.pid, 0)[1]
        return Result(os.waitstatus_to_exitcode(status), *(path.read_text() for path in self._files))


@pytest.fixture
def tiny_flags() -> list[str]:
    """The flags of a run on the tiny images."""
    return TINY


@pytest.fixture
def start_train(tmp_path):
    """`start_train("--head", "flat", ..., RANK="0")` begins `train_classifier` on the tiny images."""

    def begin(*flags: object, **env: str) -> Process:
        return Process(cli.train_main, [*TINY, *flags], tmp_path, env)

    return begin


@pytest.fixture
def train(start_train):
    """The same, to its end."""

    def finish(*flags: object, **env: str) -> Result:
        return start_train(*flags, **env).wait()

    return finish


@pytest.fixture
def bare_train(tmp_path):
    """`train_classifier` with just the flags given, to its end."""

    def finish(*flags: object) -> Result:
        return Process(cli.train_main, flags, tmp_path, {}).wait()

    return finish


@pytest.fixture
def score(tmp_path):
    """`score(RUN, "--split", "test", ...)` runs `eval_classifier` to its end."""

    def finish(*flags: object) -> Result:
        return Process(cli.eval_main, [*flags, "--device", "cpu", "--workers", 0], tmp_path, {}).wait()

    return finish


@pytest.fixture
def complaint():
    """The one line of a command that found its input bad."""

    def only_line(result: Result) -> str:
        assert result.code == 2, result.err
        assert "Traceback" not in result.err
        assert len(result.err.splitlines()) == 1, result.err
        return result.err.strip()

    return only_line


@pytest.fixture
def alone() -> Runtime:
    """One CPU process."""
    return Runtime(torch.device("cpu"), torch.float32, "a test", seed=0, rank=0, world_size=1)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a short finished run. Copy it before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    out = folder / "finished"
    argv = [*TINY, "--max-steps", 4, "--eval-every", 2, "--out", out]
    result = Process(cli.train_main, argv, folder, {}).wait()
    assert result.code == 0, result.err
    return out


@pytest.fixture(scope="session")
def rendered(tmp_path_factory) -> Path:
    """The tiny images on disk. Copy the folder before changing anything in it."""
    folder = tmp_path_factory.mktemp("session")
    space = TINY[: TINY.index("--batch-size")]
    argv = ["render", "--out", folder / "images", *space, "--workers", 1]
    result = Process(shapesgen.cli.main, argv, folder, {}).wait()
    assert result.code == 0, result.err
    return folder / "images"
