"""The two ways a command ends badly: the user's input (exit code 2) or the run itself (exit code 1)."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Callable


class UserError(Exception):
    """Bad input. The message is one line that names the flag or file at fault and says what was expected.

    No ValueError, for tyro would catch that and spread it over a box of several lines.
    """


class RunError(Exception):
    """A run that could not go on through no fault of its input, such as a loss that is not finite."""


def exit_code(program: str, command: Callable[[], None]) -> int:
    """Run `command`, print what went wrong on one line, with the rank unless it is 0, and return the exit
    code."""
    rank = os.environ.get("RANK", "0")
    speaker = program if rank == "0" else f"{program}: rank {rank}"
    try:
        command()
        sys.stdout.flush()
    except (UserError, RunError, OSError) as error:  # OSError: a full disk, a folder taken away
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 141  # without a word, as any tool that SIGPIPE ends in `command | head`
        print(f"{speaker}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except Exception:
        # A mistake of ours. Printed here, not by the interpreter, which would keep the frames alive and with
        # them the loaders, whose workers ignore SIGTERM: the process would wait for them for ever.
        traceback.print_exc()
        return 1
    except KeyboardInterrupt:  # before the training loop took over the signal, or pressed twice
        print(f"{speaker}: interrupted", file=sys.stderr)
        return 130
    return 0


def _reader_is_gone() -> bool:
    """Whether nobody reads stdout any more; it is then turned away, or the interpreter would flush again."""
    stdout = 1
    watch = select.poll()
    watch.register(stdout, 0)  # errors only
    is_gone = bool(watch.poll(0))
    if is_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return is_gone
