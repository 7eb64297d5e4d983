"""The record of a script: a CSV file with one row for each measurement.

What is in the record is not measured again, so a comparison of many hours can be made in parts, on several
days, and its page and figure drawn anew at any time.
"""

from __future__ import annotations

import csv
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from scripts.common.pages import write_csv
from sqrtvocab.errors import UserError

Row = dict[str, str]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """A CSV file of measurements."""

    path: Path
    key: tuple[str, ...]
    """The columns that make two rows the same measurement."""
    values: tuple[str, ...] = ()
    """Further columns that a row must have."""

    def rows(self) -> list[Row]:
        """All rows; none if there is no such file.

        Raises:
            UserError: the file is no text, a column is missing, or a line is cut short.
        """
        if not self.path.is_file():
            return []
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self._refused(str(error)) from error
        for number, row in enumerate(rows, start=1):
            if missing := [name for name in (*self.key, *self.values) if row.get(name) is None]:
                cut = missing[0] in row
                raise self._refused(f"row {number} is cut short" if cut else f"it has no column {missing[0]}")
        return rows

    def _refused(self, reason: str) -> UserError:
        way_out = "move it away, or name another --out"
        return UserError(f"{self.path}: not a record of this script: {reason}; {way_out}")

    def key_of(self, row: Row) -> Key:
        """What makes a row this measurement and no other."""
        return tuple(row[name] for name in self.key)

    def known(self) -> set[Key]:
        """The measurements that are in the record."""
        return {self.key_of(row) for row in self.rows()}

    def keep(self, row: Row) -> None:
        """Add a row, or update the row with the same key."""
        with lock_of(self.path):
            rows = self.rows()
            same = [old for old in rows if self.key_of(old) == self.key_of(row)]
            if same:
                same[0].update(row)
            else:
                rows.append(row)
            write_csv(self.path, rows)


def lock_of(path: Path) -> FileLock:
    """A lock for a file or folder: two parts of a comparison may run at the same time."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"sqrtvocab-{name}.lock")
