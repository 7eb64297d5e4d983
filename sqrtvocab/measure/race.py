"""Time contenders against each other on a machine that does other things too.

Each contender lives in a process of its own. After a first run that warms it up they take turns, so that
whatever slows the machine slows all of them alike. What counts are the ratios within one race.
"""

from __future__ import annotations

import multiprocessing as mp
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from tqdm import tqdm

Step = Callable[[], Any]
Maker = Callable[..., Step]

TURN_SECONDS = 0.5  # a turn lasts at least this long: a single short step would be mostly cold caches


def race(
    contenders: Mapping[str, tuple[Maker, tuple[Any, ...]]],
    *,
    repeats: int,
    threads: int,
    device: str,
    title: str,
    preload: tuple[str, ...] = ("torch",),
) -> dict[str, float]:
    """Median seconds of a step of each contender; one that fails is reported on stderr and left out.

    Args:
        contenders: name -> (maker, arguments); both must be importable by another process.
        repeats: turns of each.
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
    times: dict[str, list[float]] = {name: [] for name in contenders}
    failed: set[str] = set()
    try:
        with tqdm(total=len(contenders) * (repeats + 1), desc=title, leave=False, disable=None) as bar:
            for turn in range(repeats + 1):
                for name in contenders:
                    bar.set_postfix_str(name)
                    seconds = "" if name in failed else _ask(connections[name])
                    if isinstance(seconds, float):
                        if turn:  # the first only warms up
                            times[name].append(seconds)
                    elif seconds:
                        failed.add(name)
                        tqdm.write(f"{title}: {name}: {seconds}", file=sys.stderr)
                    bar.update()
    finally:
        for name, process in processes.items():
            if process.is_alive():
                connections[name].send("stop")
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    return {name: median(seconds) for name, seconds in times.items() if seconds}


def _ask(connection: Connection) -> float | str:
    with suppress(BrokenPipeError):  # it may have failed already, and left a message
        connection.send("go")
    try:
        answer: float | str = connection.recv()
    except (EOFError, ConnectionResetError):
        return "ended without a word (out of memory?)"
    return answer


def _serve(
    connection: Connection, maker: Maker, arguments: tuple[Any, ...], threads: int, device: str
) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    synchronise = getattr(torch, device).synchronize if device in ("cuda", "mps") else (lambda: None)
    try:
        step = maker(*arguments)
        while connection.recv() == "go":
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
