"""One process at a time in a run folder: two that train there would write over each other's checkpoints."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sqrtvocab.appended import lock_file
from sqrtvocab.errors import UserError

LOCK = ".lock"
_held: dict[tuple[int, Path], int] = {}  # descriptors, by process and folder


def lock_folder(run: Path) -> bool:
    """Keep the existing folder `run` for this process until it ends, in whatever way. Returns whether it is
    newly taken: taking it again does nothing.

    Raises:
        UserError: another process has it, or the folder cannot be written.
    """
    key = (os.getpid(), run.resolve())
    if key in _held:  # to open the file once more and close it would free the lock
        return False
    try:
        descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        if not lock_file(descriptor, run):
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip() or "unknown"
            os.close(descriptor)
            raise UserError(
                f"--out {run}: in use by another process ({holder}); wait for it, or name another --out"
            )
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        raise UserError(f"--out {run}: cannot be written ({error.strerror})") from error
    _held[key] = descriptor
    return True
