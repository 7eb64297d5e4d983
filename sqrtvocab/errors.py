"""The two ways a command ends badly: the user's input (exit code 2) or the run itself (exit code 1)."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

# What the system says of a path that cannot be meant, as opposed to a disk that fails.
_BAD_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_LONGEST_LINE = 2_000  # characters
_LONGEST = 200  # characters of a path or a value that a message shows


class UserError(Exception):
    """Bad input. The message is one line that names the flag or file at fault and says what was expected.

    No ValueError, for tyro would catch that and spread it over a box of several lines.
    """


class RunError(Exception):
    """A run that could not go on through no fault of its input, such as a loss that is not finite."""


def exit_code(program: str, command: Callable[[], object], when_stopped: str = "interrupted") -> int:
    """Run `command`, print what went wrong on one line, with the rank unless it is 0, and return the exit
    code: the command's own if it returns one. Nothing of the command is left running.

    Args:
        when_stopped: what to say after Ctrl-C. The handler of another signal may raise
            `KeyboardInterrupt(number)` to end in the same way.
    """
    open_streams()
    try:
        code = command()
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        # First of all: while an exception is alive so are the frames that it came through, and with them the
        # loaders, whose workers ignore SIGTERM. The interpreter would ask them to end, and wait for ever.
        end_children()
        return _report(program, error, when_stopped)
    return code if isinstance(code, int) else 0


def end_children() -> None:
    """Kill the processes that this one has started through `multiprocessing`."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch takes a loader's killed worker for an accident
    for child in multiprocessing.active_children():
        child.kill()


class _StandardOutput(io.FileIO):
    """Knows whether it has failed. What is too long for a buffer is lost with the error, and to flush the
    buffer once more tells nothing."""

    failure: OSError | None = None

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self.stream = stream  # kept: to lose it would be to close the descriptor

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


def open_streams() -> None:
    """Make standard output and standard error fit to be written to.

    If the command was started without one (`>&-`), the next file opened would get its number, and whatever is
    printed from C would end up in there. And a character that the terminal's encoding lacks is no reason to
    fail.
    """
    for name, number, mode in (
        ("stdin", 0, os.O_RDONLY),
        ("stdout", 1, os.O_RDONLY),
        ("stderr", 2, os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            # Reading only: writing to a closed stdout fails, as it does for other tools; stderr is forgiven.
            _point(number, os.open(os.devnull, mode))
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    out = sys.stdout
    if type(out) is io.TextIOWrapper and type(_raw(out)) is io.FileIO:  # not yet, and no test listens
        raw, is_unbuffered = _StandardOutput(out), _raw(out) is out.buffer  # PYTHONUNBUFFERED
        sys.stdout = io.TextIOWrapper(
            raw if is_unbuffered else io.BufferedWriter(raw),
            out.encoding,
            "backslashreplace",
            line_buffering=out.line_buffering,
            write_through=is_unbuffered,
        )
    elif isinstance(out, io.TextIOWrapper) and out.errors != "backslashreplace":
        out.reconfigure(errors="backslashreplace")


def _report(program: str, error: BaseException, when_stopped: str) -> int:
    """Say what went wrong, unless nobody listens, and return the exit code."""
    rank = os.environ.get("RANK", "0")
    speaker = program if rank == "0" else f"{program}: rank {rank}"
    silent = _turn_away_broken_streams()
    if isinstance(error, BrokenPipeError) and any(
        isinstance(one, BrokenPipeError) for one in silent.values()
    ):
        return 141  # without a word, as any tool that SIGPIPE ends in `command | head`
    if isinstance(error, KeyboardInterrupt):  # before a training loop took over the signal, or pressed twice
        line, code = when_stopped, 128 + (error.args[0] if error.args else signal.SIGINT)
    elif isinstance(error, UserError):
        line, code = str(error), 2
    elif isinstance(error, OSError) and error.filename is None and "stdout" in silent:
        line, code = f"standard output: {error.strerror or error}", 1
    elif isinstance(error, OSError) and error.errno in _BAD_PATHS and error.filename is not None:
        line, code = f"{_named(os.fsdecode(error.filename))}: {error.strerror}", 2
    elif isinstance(error, RunError | OSError):  # OSError: a full disk, a folder taken away
        line, code = str(error), 1
    elif isinstance(error, MemoryError):
        line, code = f"not enough memory: {error or 'the system gives no more'}", 1
    else:  # a mistake of ours
        line, code = "", 1
    # One line, even if a path has several, and one that can be read, even if a value has thousands of digits.
    line = " ".join(line.splitlines())
    line = (
        line
        if len(line) <= _LONGEST_LINE
        else f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    )
    text = f"{speaker}: {line}" if line else "".join(traceback.format_exception(error))
    if "stderr" not in silent:
        try:
            print(text.rstrip(), file=sys.stderr, flush=True)
        except OSError:  # the exit code has to do
            _point(2, os.open(os.devnull, os.O_WRONLY))
    return code


def _turn_away_broken_streams() -> dict[str, OSError]:
    """Which of stdout and stderr cannot be written to, and why; from now on nothing is written there, or the
    interpreter would try once more at its end."""
    broken: dict[str, OSError] = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        try:
            if _reader_is_gone(number):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if failure := getattr(_raw(stream), "failure", None):
                raise failure
            stream.flush()
        except OSError as error:
            broken[name] = error
            _point(number, os.open(os.devnull, os.O_WRONLY))
    return broken


def _raw(stream: Any) -> Any:
    """The file below the buffers of a stream, if it has any."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _reader_is_gone(number: int) -> bool:
    if not hasattr(select, "poll"):  # Windows, whose pipes fail when they are written to
        return False
    watch: Any = select.poll()
    watch.register(number, 0)  # errors only
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in watch.poll(0))


def _point(number: int, descriptor: int) -> None:
    """Let the descriptor `number` be another name of `descriptor`."""
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def _named(path: str) -> str:
    """A path with the flag that brought it here, if one did."""
    here, arguments = Path(path), sys.argv[1:]
    given = [(name, value) for name, value in pairwise(arguments) if name.startswith("--")]
    given += [
        (name, value) for name, _, value in (argument.partition("=") for argument in arguments) if value
    ]
    flags = [name for name, value in given if name.startswith("--") and Path(value) in (here, *here.parents)]
    return f"{flags[0]} {shortened(path)}" if flags else shortened(path)


def shortened(words: object) -> str:
    """As much of what the user wrote, such as a path, as fits into a message."""
    text = str(words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
