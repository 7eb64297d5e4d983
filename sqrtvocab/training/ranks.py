"""The other ranks of a torchrun job: noticing that one has been stopped or has died, and saying so."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from sqrtvocab.errors import end_children

BEAT = 2.0  # seconds between two signs of life
PATIENCE = 24.0  # seconds without one
_DONE = 1 << 40  # more beats than any run has: this rank has ended well


class Heartbeat:
    """Ends this process, with one line, when another rank gives no more signs of life.

    A collective waits for half an hour for a rank that was stopped, or whose machine is gone. Waiting less
    would end good runs, for one rank may save or write stories for minutes while the others wait. So a thread
    on each rank, which goes on meanwhile, counts its beats in the store through which the job has met.

    Args:
        store: of the job; this makes a connection of its own.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self._rank = store.clone(), rank
        now, others = time.monotonic(), (other for other in range(world_size) if other != rank)
        self._heard = dict.fromkeys(others, (0, now))  # how many beats, and when the last one
        self._is_over = threading.Event()
        # Two threads: the store's keeper may be the one that was stopped, and then nobody answers the first.
        for work in (self._beat, self._judge):
            threading.Thread(target=work, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """This rank has ended well: the others need not wait for it any more."""
        self._is_over.set()
        with suppress(RuntimeError):  # the others have ended, and the store with them
            self._count(self._rank, _DONE)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT):
            with suppress(RuntimeError):  # the store is gone: nobody is heard any more
                self._count(self._rank, 1)
                for rank, (beats, _) in self._heard.items():
                    if (newest := self._count(rank, 0)) != beats:
                        self._heard[rank] = (newest, time.monotonic())

    def _judge(self) -> None:
        while not self._is_over.wait(BEAT):
            longest = time.monotonic() - PATIENCE
            late = [rank for rank, (beats, last) in self._heard.items() if beats < _DONE and last < longest]
            if late and not self._is_over.is_set():
                self._end(late)

    def _count(self, rank: int, beats: int) -> int:
        return int(self._store.add(f"heartbeat/{rank}", beats))

    def _end(self, late: list[int]) -> None:
        """At once: the main thread is waiting somewhere in C++, where no exception reaches it."""
        names = f"rank {late[0]} has" if len(late) == 1 else f"{len(late)} ranks, the first {late[0]}, have"
        print(
            f"rank {self._rank}: {names} given no sign of life for {PATIENCE:g} s (stopped, or the machine "
            "is gone): this rank ends too; continue with --resume auto",
            file=sys.stderr,
            flush=True,
        )
        end_children()
        os._exit(1)


def is_lost_connection(error: BaseException) -> bool:
    """Whether `error` is a collective's, because another rank has ended."""
    signs = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
    return isinstance(error, dist.DistError) or any(sign in str(error).lower() for sign in signs)
