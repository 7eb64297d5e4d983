"""The two ways a command ends badly: the user's input (exit code 2) or the run itself (exit code 1)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input. The message is one line that names the flag or file at fault and says what was expected."""


class RunError(Exception):
    """A run that could not go on through no fault of its input, such as a loss that is not finite."""


def exit_code(program: str, command: Callable[[], None]) -> int:
    """Run `command`, print what went wrong on one line (rank 0 only) and return the process's exit code."""
    try:
        command()
    except (UserError, RunError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:  # before the training loop took over the signal, or pressed twice
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    return 0
