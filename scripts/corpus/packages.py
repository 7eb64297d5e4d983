"""Debian packages: which there are, how to fetch them, and what is in them. Nothing is installed."""

from __future__ import annotations

import fnmatch
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from sqrtvocab.errors import UserError

_SMALL = 1 << 16  # bytes; a package below that may be one that only depends on the one with the text
_BATCH = 1 << 25  # bytes fetched by one call of apt-get
_LICENCE = re.compile(r"^License:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_NO_APT = "{} is not here: fetch .deb files on a machine with apt and give their folder with --debs"


@dataclass(frozen=True)
class Offer:
    """A package that apt can fetch."""

    name: str
    version: str
    size: int  # of the .deb, in bytes
    depends: tuple[str, ...]


def offers(patterns: Sequence[str], must_exist: bool) -> list[Offer]:
    """What apt has under these names or shell patterns, in the order of their names. A package that is
    nothing but a pointer to the documentation of today's version (linux-doc, python3-doc) is followed.

    Raises:
        UserError: there is no apt, or it knows none; with `must_exist`, it lacks one of them.
    """
    known = _lines("apt-cache", "pkgnames")
    names = {pattern: fnmatch.filter(known, pattern) for pattern in patterns}
    found = _show([name for matched in names.values() for name in matched])
    lacking = [pattern for pattern, matched in names.items() if not found.keys() & set(matched)]
    if lacking and (must_exist or not found):
        raise UserError(
            f"--packages: apt has no {', '.join(lacking[:5])}; look with --list, or run apt-get update first"
        )
    while True:
        targets = {
            target
            for offer in found.values()
            if offer.size < _SMALL
            for target in offer.depends
            if re.search(r"-doc(-|$)", target) and target not in found
        }
        followed = _show(sorted(targets))
        if not followed:
            return [found[name] for name in sorted(found)]
        found |= followed


def _show(names: Sequence[str]) -> dict[str, Offer]:
    if not names:
        return {}
    found: dict[str, Offer] = {}
    for record in "\n".join(_lines("apt-cache", "show", "--no-all-versions", *names)).split("\n\n"):
        fields = fields_of(record)
        if "Size" in fields and fields["Package"] not in found:
            depends = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", fields.get("Depends", ""))
            offer = Offer(fields["Package"], fields["Version"], int(fields["Size"]), tuple(depends))
            found[offer.name] = offer
    return found


def fetch(wanted: Sequence[Offer], folder: Path, done: Callable[[int], object]) -> list[Path]:
    """Download packages into `folder` -> the files; `done` is told the bytes of each batch.

    Raises:
        UserError: there is no apt, or it fails.
    """
    at = 0
    while at < len(wanted):
        stop, size = at, 0
        while stop < len(wanted) and size < _BATCH:
            size += wanted[stop].size
            stop += 1
        _lines("apt-get", "download", *(offer.name for offer in wanted[at:stop]), cwd=folder)
        done(size)
        at = stop
    return sorted(folder.glob("*.deb"))


def _lines(program: str, *arguments: str, cwd: Path | None = None) -> list[str]:
    if shutil.which(program) is None:
        raise UserError(_NO_APT.format(program))
    result = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, errors="replace")
    if result.returncode and program == "apt-get":  # apt-cache complains of names that are no packages
        errors = [line for line in result.stderr.splitlines() if line.startswith("E:")]
        reason = " ".join(errors)[:300] or f"exit code {result.returncode}"
        raise UserError(f"apt-get download: {reason}; try again, or give .deb files with --debs")
    return result.stdout.splitlines()


def fields_of(record: str) -> dict[str, str]:
    """The fields of a control file, continuation lines left out."""
    pairs = (line.split(":", 1) for line in record.splitlines() if ":" in line and not line[0].isspace())
    return {name: value.strip() for name, value in pairs}


# ---- what is in a .deb: an `ar` archive of two tar files ----


@dataclass(frozen=True)
class Package:
    """A .deb file on disk."""

    path: Path
    name: str
    version: str
    installed: int  # about how many bytes it unpacks to

    @classmethod
    def open(cls, path: Path) -> Package:
        """Read what the file says of itself.

        Raises:
            UserError: it is no Debian package, or damaged; reading its files may find that, too.
        """
        for name, content in _unpack(path, "control.tar"):
            if name == "control":
                fields = fields_of(content.decode("utf-8", "replace"))
                installed = int(fields.get("Installed-Size", "0")) * 1024
                return cls(path, fields["Package"], fields["Version"], installed)
        raise UserError(f"{path}: no control file in it, so no Debian package")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The regular files: path without a leading "./", and content."""
        return _unpack(self.path, "data.tar")


def licences(copyright_file: str) -> list[str]:
    """The short names of the licences in a machine-readable copyright file; none if it is not one."""
    if not re.match(r"\s*Format(-Specification)?:", copyright_file):
        return []
    return list(dict.fromkeys(_LICENCE.findall(copyright_file)))


def _unpack(path: Path, part: str) -> Iterator[tuple[str, bytes]]:
    """The regular files of the tar that the .deb has as `part`, whatever its compression."""
    try:
        name, content = _member(path, part)
        compression = name.removeprefix(part).lstrip(".")
        stream: IO[bytes] = io.BytesIO(content)
        if compression == "zst":
            import pyarrow as pa  # can, and is here anyway; Python's own library cannot before 3.14

            stream, compression = pa.CompressedInputStream(stream, "zstd"), ""
        with tarfile.open(fileobj=stream, mode=cast(Any, f"r|{compression}")) as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), file.read()
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise UserError(f"{path}: cannot be unpacked ({error}); fetch it again") from error


def _member(path: Path, part: str) -> tuple[str, bytes]:
    """The member of an `ar` archive whose name begins with `part`: its name and content."""
    with path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("no ar archive")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), int(header[48:58])
            if name.startswith(part):
                return name, file.read(size)
            file.seek(size + size % 2, 1)  # members begin at even places
    raise ValueError(f"no {part} in it")
