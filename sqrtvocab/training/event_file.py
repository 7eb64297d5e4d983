"""TensorBoard's event file, written by the thread that has something to say."""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from sqrtvocab.appended import AppendedFile

_numbers = itertools.count()  # of the files of this process


class EventFile:
    """One file of the run in `folder`.

    `SummaryWriter` hands everything to a thread of its own. On a full disk that thread dies, and the process
    waits for it for ever.

    Args:
        purge_step: TensorBoard is to forget what earlier files of the folder have recorded from here on.

    Raises:
        RunError: if it cannot be written; so do all methods.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        place = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._file = AppendedFile(folder / f"events.out.tfevents.{place}")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"), purge_step or 0)
        if purge_step is not None:
            self._write(Event(session_log=SessionLog(status=SessionLog.START)), purge_step)

    def add(self, summary: Summary, step: int = 0) -> None:
        """Record what a function of `torch.utils.tensorboard.summary` has made."""
        self._write(Event(summary=summary), step)

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        self._records.write(event.SerializeToString())
