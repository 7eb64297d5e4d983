"""Files that only grow, and locks that vanish with the process."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from sqrtvocab.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class AppendedFile:
    """A file that only grows. What is written is with the system at once: nothing is left to be lost by a
    kill, or to fail once more when the process ends.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b", buffering=0)

    def write(self, data: bytes) -> None:
        """Append.

        Raises:
            RunError: it cannot be written, such as on a full disk.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]  # a disk that is nearly full takes what it can
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror or error}") from error

    def read(self) -> bytes:
        """All that is in the file. (Not by opening it again: that would free its lock.)"""
        self._file.seek(0)
        return self._file.readall()

    def cut(self, size: int) -> None:
        """Leave only the first `size` bytes."""
        self._file.truncate(size)

    def lock(self) -> bool:
        """Whether this process now has the file for itself, until it ends."""
        return lock_file(self._file.fileno(), self._path)

    def close(self) -> None:
        self._file.close()


def lock_file(descriptor: int, path: Path) -> bool:
    """Whether this process now has the open file for itself: until it ends, in whatever way, or closes any
    descriptor of that file.

    The lock is the system's and belongs to the process alone: `kill -9` frees it, and workers that outlive
    their parent for a moment do not hold it. Where there are no locks a warning must do.
    """
    try:
        if fcntl is None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        why = f"{error.strerror}: let no other process write there"
        print(f"WARNING: {path} cannot be locked ({why})", file=sys.stderr)
    return True
