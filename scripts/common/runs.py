"""Training what a record lacks, one run after the other: to be stopped, continued and done in parts."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout
from tqdm import tqdm

from scripts.common.command import QUICK, RESULTS, make_folder, say
from scripts.common.jobs import Contender, Job, by_definition
from scripts.common.records import Record, lock_of
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least, positive

Train = Callable[[Job, int], int]  # a job and the number of torch threads -> the trainer's exit code


@dataclass(frozen=True)
class RunFlags:
    """The flags of every script that trains for a record."""

    seeds: tuple[int, ...] = (0,)
    """Seeds; everything is trained with each of them."""
    threads: int = 2
    """Torch threads of a run. Losses do not depend on it, seconds do: rows of other machines or threads are
    left out of the seconds and the figure."""
    max_minutes: float | None = None
    """Begin no further run after so many minutes; call again for the rest."""
    out: Path | None = None
    """Folder for the record and what is made of it; docs/results by default, runs/quick with --quick."""
    runs: Path = Path("runs/compare")
    """Folder for the runs: tensorboard --logdir RUNS."""
    quick: bool = False
    """Tiny models on built-in data, to see everything work in under two minutes; the figures mean nothing."""
    redraw: bool = False
    """Train nothing: make everything from the record."""

    def problems(self) -> list[str]:
        """What is wrong with these flags."""
        found = at_least(self, 1, "threads") + positive(self, "max_minutes")
        if not self.seeds or min(self.seeds) < 0:
            found.append("--seeds must be at least one number, none negative")
        return found

    def folder(self) -> Path:
        """The folder of `--out`, made now rather than after hours of training; --redraw needs one that is."""
        if self.redraw:
            return self.out or (QUICK if self.quick else RESULTS)
        return make_folder(self.out, self.quick)

    def data_problems(self, data: str | None) -> list[str]:
        """What is wrong with `--data`: a row must say which text it is about."""
        if self.quick or self.redraw or data not in (None, "auto"):
            return []
        return ["--data must name the text: tinystories, stories:N, a file or a folder"]


def train_in_new_process(job: Job, threads: int) -> int:
    """Train as the command does: nothing of an earlier run counts as memory or time of this one."""
    return launch(["-m", job.trainer, *job.flags()], threads)


def train_in_this_process(job: Job, threads: int) -> int:
    """Train here, with the heads that only this process has registered.

    Peak memory is then that of all runs so far.
    """
    import torch

    threads_before, words_before = torch.get_num_threads(), sys.argv
    torch.set_num_threads(threads)
    sys.argv = [job.trainer, *job.flags()]
    try:
        code: int = importlib.import_module(job.trainer.replace(".train", ".cli")).train_main()
    finally:
        sys.argv = words_before
        torch.set_num_threads(threads_before)
    return code


def train_in_fork(job: Job, threads: int) -> int:
    """Train in a copy of this process, which has imported what a run needs: that takes seconds, each time."""
    importlib.import_module(job.trainer)
    return fork(lambda: train_in_this_process(job, threads), threads)


def run_all(
    jobs: Sequence[Job],
    record: Record,
    threads: int,
    max_minutes: float | None,
    after: Callable[[], None],
    shared: bool = False,
    train: Train = train_in_new_process,
) -> None:
    """Train what the record lacks, one after the other, and call `after` when a row was added.

    Raises:
        UserError: the trainer refused its input.
        RunError: a run ended badly; what was finished is in the record.
        SystemExit: a signal came.
    """
    if not jobs:
        say(f"nothing to train: all rows are in {record.path}")
        return
    began, failed, done = time.monotonic(), [], 0
    layout = "{desc} |{bar:20}| {percentage:3.0f} %, {elapsed} < {remaining}"
    work = sum(job.contender.cost for job in jobs)
    with tqdm(total=work, desc=f"{len(jobs)} runs", bar_format=layout, leave=False) as bar:
        for number, job in enumerate(jobs, start=1):
            if max_minutes is not None and time.monotonic() - began > 60 * max_minutes:
                left = len(jobs) - number + 1
                say(f"--max-minutes {max_minutes:g} are over; runs left for the next call: {left}")
                break
            bar.set_description_str(f"run {number} of {len(jobs)}: {job.name}, seed {job.seed}")
            print(file=sys.stderr)  # the bar stays above the run's own line
            with alone_in(job.folder):
                if not job.is_finished():
                    code = train(job, threads)
                    if code == 2:  # bad input: the others would fail alike
                        raise UserError(f"{job.name} was refused by the trainer: see above")
                    if code or not job.is_finished():
                        failed.append(f"{job.name} (seed {job.seed}) ended with exit code {code}")
                        say(failed[-1])
                        continue
                if job.key not in record.known():  # it may be there already, for its embedding
                    record.keep(job.row(threads, shared))
                job.tidy()
            after()
            done += 1
            bar.update(job.contender.cost)
    say(f"runs added to {record.path}: {done}")
    if failed:
        raise RunError(f"{'; '.join(failed)}; call again to try them once more")


def require_rows(record: Record, contenders: Mapping[str, Contender]) -> None:
    """Raise `UserError` if `--redraw` would find nothing to draw."""
    rows = record.rows()
    if not rows:
        raise UserError(f"--redraw: no row in {record.path}; --out names the folder of another record")
    if not by_definition(rows, contenders)[0]:
        raise UserError(f"--redraw: all rows in {record.path} are of older contenders; train anew")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other call trains in this run folder; it may have finished the run by then."""
    lock = lock_of(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{folder}: another call is training here; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def launch(arguments: Sequence[str], threads: int) -> int:
    """Run Python with these arguments, on our terminal -> its exit code.

    A signal goes on to the process, which saves before it ends; then we end, too.

    Raises:
        SystemExit: after a signal.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    # This interpreter, not the installed command: it must be of this environment. In a group of its own,
    # so that Ctrl-C reaches it once, through us: a second one would end it without saving.
    command = [sys.executable, *arguments]
    with _signals_for() as of_child:
        process = subprocess.Popen(command, env=environment, process_group=0)
        of_child(process.send_signal)
        return process.wait()


def fork(call: Callable[[], int], threads: int) -> int:
    """Run `call` in a copy of this process -> its exit code. What is imported here is there at once.

    Raises:
        SystemExit: after a signal, as `launch`.
    """
    with _signals_for() as of_child:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                import torch

                os.setpgid(0, 0)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.default_int_handler)
                torch.set_num_threads(threads)
                code = call()
            except SystemExit as end:  # of a command that refuses its flags
                code = end.code if isinstance(end.code, int) else 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # not what else was to be done here
        of_child(lambda number: os.kill(pid, number))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        of_child(None)
        return code


Send = Callable[[int], None]


@contextmanager
def _signals_for() -> Iterator[Callable[[Send | None], None]]:
    """Pass signals on to a child, by a function that must be told when there is one; after one, end."""
    sends: list[Send] = []
    received: list[int] = []
    waiting: list[int] = []  # came before there was a process to pass them to

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if sends:
            sends[0](number)
        else:
            waiting.append(number)

    def tell(send: Send | None) -> None:
        sends[:] = [] if send is None else [send]
        while send is not None and waiting:
            send(waiting.pop())

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield tell
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        say("stopped; call again to continue")
        raise SystemExit(128 + received[0])
