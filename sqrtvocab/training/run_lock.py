"""One process at a time in a run folder: two that train there would write over each other's checkpoints."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from sqrtvocab.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_held: dict[tuple[int, Path], int] = {}  # descriptors, by process and folder


def lock_folder(run: Path) -> bool:
    """Keep the existing folder `run` for this process until it ends, in whatever way. Returns whether it is
    newly taken: taking it again does nothing.

    The lock is the system's and belongs to this process alone: `kill -9` frees it, and workers that outlive
    the trainer for a moment do not hold it.

    Raises:
        UserError: another process has it, or the folder cannot be written.
    """
    key = (os.getpid(), run.resolve())
    if key in _held:  # to open the file once more and close it would free the lock
        return False
    try:
        descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"--out {run}: cannot be written ({error.strerror})") from error
    _held[key] = descriptor
    if fcntl is None:
        _warn(run, "not on this system")
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
            _warn(run, os.strerror(error.errno or 0))
            return True
        holder = os.read(descriptor, 200).decode("utf-8", "replace").strip() or "unknown"
        os.close(_held.pop(key))
        raise UserError(
            f"--out {run}: in use by another process ({holder}); wait until it ends, or name another --out"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
    return True


def _warn(run: Path, why: str) -> None:
    print(f"WARNING: {run} cannot be locked ({why}): let no other process train there", file=sys.stderr)
