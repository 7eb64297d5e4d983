"""What every test may ask for."""

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings
from tqdm import tqdm

from sqrtvocab.heads import two_level
from sqrtvocab.training import Runtime, read_metrics

# No deadline: machines are shared and the first call of an operator is slow. CI must not fail by chance.
SETTINGS = {"deadline": None, "derandomize": bool(os.environ.get("CI"))}
settings.register_profile("quick", max_examples=15, **SETTINGS)
settings.register_profile("thorough", max_examples=60, **SETTINGS)


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests Hypothesis tries fewer examples, too."""
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("quick" if config.option.markexpr == "not slow" else "thorough")


# They need a process of their own, see tests/gpu/test_fresh_process.py; named on the command line, they run.
collect_ignore_glob = ["*test_waits.py"]

# A pool of threads does not survive the fork of a command.
torch.set_num_threads(1)

# tqdm's own lock is shared with forked processes: one that is killed while it draws a bar would keep it.
tqdm.set_lock(threading.RLock())

# Heads of tests are small: without this none of them would search for its best classes, as large ones do.
SMALL = {
    name: getattr(two_level, name) for name in ("SMALL", "SMALL_OF_BEST", "SMALL_AT_MOST", "SMALL_TO_DRAW")
}
for name in SMALL:
    setattr(two_level, name, 0)

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
if torch.backends.mps.is_available():
    DEVICES.append("mps")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device present: the owner of a GPU tests more."""
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def few_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads with few classes look at all of them, as they do outside of tests."""
    for name, value in SMALL.items():
        monkeypatch.setattr(two_level, name, value)


@pytest.fixture
def alone() -> Runtime:
    """One CPU process."""
    return Runtime(torch.device("cpu"), torch.float32, "a test", seed=0, rank=0, world_size=1)


# ---- commands ----


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Process:
    """A command in a forked process, which need not import torch again, with its output in files."""

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
        gc.freeze()  # to look for garbage among all that was imported would copy it into this process
        try:
            for descriptor, path in zip((1, 2), self._files, strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.setpgid(0, 0)  # as under a shell or a scheduler, which signal all processes of a job
            signal.signal(signal.SIGINT, signal.default_int_handler)
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # nor does that of the tokenizers
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

    def wait(self, seconds: float | None = None) -> Result:
        """Its end; killed, which shows in its code, if it is not over after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while (done := os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                self.kill()
                deadline = None
            time.sleep(0.005)
        texts = (path.read_text("utf-8", "surrogateescape") for path in self._files)
        return Result(os.waitstatus_to_exitcode(done[1]), *texts)


@pytest.fixture(scope="session")
def forked() -> type[Process]:
    """`forked(main, argv, folder, env)` begins a command."""
    return Process


@pytest.fixture(scope="session")
def wait_for_step() -> Callable[[Path, int], None]:
    """`wait_for_step(run, 3)` returns when the run in that folder has reported step 3."""

    def wait(run: Path, step: int) -> None:
        path = run / "metrics.jsonl"
        for _ in range(3000):
            if path.exists() and any(row["step"] >= step for row in read_metrics(path)):
                return
            time.sleep(0.02)
        pytest.fail(f"{run} never came to step {step}")

    return wait


@pytest.fixture
def ranks() -> Callable[[int], list[dict[str, str]]]:
    """What torchrun puts into the environment of each of so many processes."""

    def environments(count: int) -> list[dict[str, str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        size = str(count)
        job = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **job} for rank in range(count)]

    return environments


@pytest.fixture
def two_ranks(ranks) -> list[dict[str, str]]:
    """The same of two."""
    return ranks(2)


@pytest.fixture
def complaint() -> Callable[[Result], str]:
    """The one line of a command that found its input bad."""

    def only_line(result: Result) -> str:
        assert result.code == 2, result.err
        assert "Traceback" not in result.err
        assert len(result.err.splitlines()) == 1, result.err
        return result.err.strip()

    return only_line


# ---- what the tests of faults have tried ----


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """`tally("kill points of render", 51)`: counts for the summary at the end. Kept with the test's report,
    which is how they reach the process that writes the summary."""
    return lambda what, tries: request.node.user_properties.append(("tries", (what, tries)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "tries":
                counts[value[0]] += value[1]
    if counts:
        terminalreporter.section("faults tried, none left")
        for what, tries in sorted(counts.items()):
            terminalreporter.line(f"{tries:6,} {what}")
