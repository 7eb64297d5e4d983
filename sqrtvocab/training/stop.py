"""Reasons to end a run early but cleanly: a time limit, Ctrl-C, or a scheduler's SIGTERM."""

from __future__ import annotations

import math
import os
import signal
import time
from types import FrameType, TracebackType

from sqrtvocab.training.runtime import Runtime


class StopRequests:
    """Watches the clock from the start, and SIGINT and SIGTERM from `catch_signals` until it is closed.

    The first signal only sets `reason` (and rank 0 says so), so the loop can finish its step, save and
    evaluate. The second acts as it did before, for someone who really means it. A context manager: leaving it
    gives the signals back.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._max_minutes = max_minutes
        self._signal: str | None = None
        self._handlers_before: dict[signal.Signals, object] = {}

    @property
    def reason(self) -> str | None:
        """Why this process should end now, or None."""
        if self._signal is not None:
            return self._signal
        if self.seconds_left == 0:
            return f"--max-minutes {self._max_minutes:g} reached"
        return None

    def agreed_reason(self, runtime: Runtime) -> str | None:
        """Why to stop now, or None: all ranks get the same answer, for they must stop at the same step."""
        if not runtime.any(self.reason is not None):
            return None
        return self.reason or "another rank was told to stop"

    @property
    def seconds_left(self) -> float:
        """Until the time limit; infinite without one."""
        return math.inf if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def catch_signals(self) -> None:
        """Take signals as requests. Before the first step Ctrl-C should just end the command."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers_before[number] = signal.signal(number, self._on_signal)

    def __enter__(self) -> StopRequests:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._restore_handlers()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = f"{signal.Signals(number).name} received"
        self._restore_handlers()
        if os.environ.get("RANK", "0") == "0":
            clear = "\r\x1b[K" if os.isatty(2) else ""
            end = "finishing the step, saving and evaluating; once more ends it at once"
            # By os.write: the signal may have come in the middle of a print.
            os.write(2, f"{clear}{self._signal}: {end}\n".encode())

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
