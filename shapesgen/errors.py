"""How a set can go wrong through no fault of what was asked for; the messages are one line each."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from sqrtvocab.errors import RunError, UserError, shortened


class WriteError(RunError):
    """Writing failed on the way; finished shards are kept."""


class DamagedShardError(RunError):
    """A shard cannot be read, or does not hold what it should. The message names it."""


@contextlib.contextmanager
def naming_out(out: Path) -> Iterator[None]:
    """What the system refuses in this block is the fault of --out, unless the disk is full or broken."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        named = {str(name) for name in (error.filename, error.filename2) if name is not None} - {str(out)}
        where = f" ({shortened(', '.join(sorted(named)))})" if named else ""
        raise UserError(f"--out {shortened(str(out))}: {error.strerror or error}{where}") from None
