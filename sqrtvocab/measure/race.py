"""Time contenders against each other on a machine that does other things too.

Each contender lives in a process of its own. Its first runs warm it up and count its memory; then they take
turns, so that whatever slows the machine slows all of them alike. What counts are the ratios within one race.
Each keeps the memory that it frees for its next step, as our trainers do: otherwise those with large tensors
would be measured on the system's page faults.
"""

from __future__ import annotations

import multiprocessing as mp
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

from tqdm import tqdm

Step = Callable[[], Any]
Contender = tuple[Callable[..., Step], tuple[Any, ...]]
"""A function that makes the step to be timed, and its arguments, both importable by another process."""

TURN_SECONDS = 0.3  # a turn lasts at least this long: a single short step would be mostly cold caches
SLOW_SECONDS = 5.0  # a contender slower than this takes two turns only
WARM_UP = (
    3  # steps after the first until the memory that is kept is enough: large blocks find their places late
)


class Result(NamedTuple):
    """What a contender needed for a step."""

    seconds: float
    """Median over its turns."""
    peak: int
    """The most bytes that the step held at one time, over what it found."""
    turns: int


def race(
    contenders: Mapping[str, Contender],
    *,
    repeats: int,
    threads: int,
    device: str,
    title: str,
    preload: tuple[str, ...] = ("torch",),
) -> dict[str, Result]:
    """Run the race; a contender that fails is reported on stderr and left out.

    Args:
        repeats: turns of each contender, at least 1.
        threads: torch threads of each.
        title: of the progress bar.
        preload: modules imported once, before the processes begin.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    processes, connections = {}, {}
    for name, (maker, arguments) in contenders.items():
        connections[name], theirs = context.Pipe()
        processes[name] = context.Process(
            target=_serve, args=(theirs, maker, arguments, threads, device), daemon=True
        )
        processes[name].start()
        theirs.close()
    peaks: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        with tqdm(total=len(contenders) * (repeats + 1), desc=title, leave=False, disable=None) as bar:

            def ask(name: str, request: str) -> Any:
                bar.set_postfix_str(name)
                answer = _ask(connections[name], request)
                bar.update()
                if isinstance(answer, str):
                    tqdm.write(f"{title}: {name}: {answer}", file=sys.stderr)
                    peaks.pop(name, None)
                    return None
                return answer

            for name in contenders:
                if (peak := ask(name, "measure")) is not None:
                    peaks[name] = peak
            for _ in range(repeats):
                for name in list(peaks):
                    if len(times[name]) >= 2 and median(times[name]) > SLOW_SECONDS:
                        bar.update()
                    elif (seconds := ask(name, "time")) is not None:
                        times[name].append(seconds)
    finally:
        for name, process in processes.items():
            with suppress(BrokenPipeError):
                connections[name].send("stop")
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    return {name: Result(median(times[name]), peak, len(times[name])) for name, peak in peaks.items()}


def _ask(connection: Connection, request: str) -> int | float | str:
    with suppress(BrokenPipeError):  # it may have failed already, and left a message
        connection.send(request)
    try:
        answer: int | float | str = connection.recv()
    except (EOFError, ConnectionResetError):
        return "ended without a word (out of memory?)"
    return answer


def _serve(
    connection: Connection,
    maker: Callable[..., Step],
    arguments: tuple[Any, ...],
    threads: int,
    device: str,
) -> None:
    """Answer "measure" with bytes and "time" with seconds a step, until told to stop."""
    import torch

    from sqrtvocab.measure.memory import allocated_by
    from sqrtvocab.training.memory import keep_freed_memory

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if device == "cpu":
        keep_freed_memory()
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    try:
        step = maker(*arguments)
        while (request := connection.recv()) != "stop":
            if request == "measure":
                peak = allocated_by(step, device).peak
                for _ in range(WARM_UP):
                    step()
                connection.send(peak)
                continue
            start, steps = time.perf_counter(), 0
            while steps == 0 or time.perf_counter() - start < TURN_SECONDS:
                step()
                synchronise()
                steps += 1
            connection.send((time.perf_counter() - start) / steps)
    except Exception as error:  # reported by the parent, on one line
        connection.send(f"{type(error).__name__}: {error}".splitlines()[0])
    except KeyboardInterrupt:
        pass
