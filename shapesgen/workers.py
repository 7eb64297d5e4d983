"""Run one function over many shards in several processes, with a progress bar and a clean end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from typing import Any, TypeVar

from tqdm import tqdm

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[int, int], None]
"""To be called now and then with the images and bytes newly done."""


class StoppedError(Exception):
    """Raised in a worker by its report when the run has ended without it."""


def run(
    function: Callable[[Task, Report], Result],
    tasks: Sequence[Task],
    workers: int,
    images: int,
    progress: bool,
    joins: bool = False,
) -> list[Result]:
    """`function(task, report)` for each task, in `workers` processes; the results in order.

    The first exception, Ctrl-C included, stops all workers at their next report and is raised here. With one
    worker all happens in this process. Otherwise `function` must be picklable.

    Args:
        joins: this process is one of them, from the last task backwards: it has imported already what others
            must import first.
    """
    with tqdm(total=images, unit=" images", unit_scale=True, disable=not progress, smoothing=0.1) as bar:

        def show(done: int, size: int) -> None:
            bar.set_postfix_str(f"{size / 1e6:,.0f} MB", refresh=False)
            bar.update(done - bar.n)

        if workers == 1 or len(tasks) <= 1:
            totals = [0, 0]

            def report(done: int, size: int) -> None:
                totals[0] += done
                totals[1] += size
                show(*totals)

            return [function(task, report) for task in tasks]

        # Spawned, not forked: the parent may have threads, of torch or pyarrow, that a fork would break.
        context = multiprocessing.get_context("spawn")
        counts = context.Array("q", 3)  # images, bytes, whether to stop
        others = min(workers, len(tasks)) - joins
        with ProcessPoolExecutor(others, context, _start, (counts,)) as pool:
            try:
                with _workers_are_deaf():
                    futures = [pool.submit(_call, function, task) for task in tasks]
                mine: dict[int, Result] = {}

                def report_here(done: int, size: int) -> None:
                    _add(counts, done, size)
                    show(counts[0], counts[1])

                for number in reversed(range(len(tasks))) if joins else ():
                    if any(future.done() and future.exception() for future in futures[:number]):
                        break
                    if not futures[number].cancel():  # the others have come so far
                        break
                    mine[number] = function(tasks[number], report_here)
                pending = {future for number, future in enumerate(futures) if number not in mine}
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                    show(counts[0], counts[1])
                    for future in done:
                        future.result()
            except BaseException:
                counts[2] = 1
                pool.shutdown(cancel_futures=True)
                raise
        return [mine[n] if n in mine else future.result() for n, future in enumerate(futures)]


@contextlib.contextmanager
def _workers_are_deaf() -> Iterator[None]:
    """Processes started in this block inherit that signals are held back. Ctrl-C, and whatever a scheduler
    sends to all processes of a job, is for the parent, which stops the workers."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_counts: Any = None


def _start(counts: Any) -> None:
    global _counts
    _counts = counts
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[Any, Report], Any], task: Any) -> Any:
    def report(done: int, size: int) -> None:
        _add(_counts, done, size)
        if _counts[2]:
            raise StoppedError

    return function(task, report)


def _add(counts: Any, done: int, size: int) -> None:
    with counts.get_lock():
        counts[0] += done
        counts[1] += size
