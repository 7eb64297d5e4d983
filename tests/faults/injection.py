"""Faults to try on any command: killed at a file operation, a full disk, damaged files, bad invocations.

A command is a `main` that reads `sys.argv`. What wraps a `main` here is for the fixture `forked`, which runs
it in a process of its own:

    disturbed = Disturbed(main, inside=folder, at=7, how="full")
    result = forked(disturbed, argv, tmp_path, {}).wait()
"""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import itertools
import os
import pickle
import random
import shutil
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

KILLED = 86  # exit code of a process that ended itself at an operation
FREEING = ("unlink", "rmdir")  # what a full disk allows
How = Literal["kill", "full", "watch"]

# ---- file operations ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A file operation of a command."""

    place: str
    left: dict[str, bytes]
    """What the folder would hold, see `contents`, if the process were killed in this operation."""


@dataclass
class Disturbed:
    """`main`, watched, or disturbed at one of its file operations below the folder `inside`.

    Counted are the operations that change something: opening for writing, every write to a file, truncate,
    fsync, rename, link, unlink, mkdir and rmdir, in the order in which this process makes them. Disturbed
    writes are half done. Files that safetensors and torch would write by themselves are written by Python
    instead, with the same bytes. Nothing is really synced: it is the process that dies. And clocks only count
    how often they are asked, so that two runs write the same bytes.
    """

    main: Callable[[], int]
    inside: Path
    at: int = -1
    """Number of the operation, from 0."""
    how: How = "watch"
    """kill: the process ends in the operation; full: it and all later ones that need room raise ENOSPC;
    watch: nothing happens to it."""
    log: Path | None = None
    """Where to write all operations, as a pickled list of `Step`, when `main` has returned."""

    def __call__(self) -> int:
        self._count, self._steps, self._files = 0, list[Step](), dict[bytes, bytes]()
        self._root = os.path.realpath(self.inside)
        self._patch()
        code = self.main()
        if self.log is not None:
            with self._open(self.log, "wb") as file:
                pickle.dump(self._steps, file)
        return code

    def _step(self, name: str, path: object, half: Callable[[], int] = lambda: 0) -> int:
        """Before each operation. `half` does half of it; returned is how many bytes have been written."""
        if not self._is_inside(path):
            return 0
        number, self._count = self._count, self._count + 1
        if self.log is not None:
            written, here = half(), Path(self._root)
            place = f"{name} {os.fspath(path) if isinstance(path, str | os.PathLike) else path}"
            left = contents(here, self._open)
            left = {name: self._files.setdefault(data, data) for name, data in left.items()}  # kept once
            self._steps.append(Step(place, left))
            return written
        if self.how == "kill" and number == self.at:
            half()
            os._exit(KILLED)
        if self.how == "full" and number >= self.at and name not in FREEING:
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return 0

    def _is_inside(self, path: object) -> bool:
        if isinstance(path, int):  # a descriptor
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return True  # no such names on this system: count it
        folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fspath(path))))  # type: ignore[call-overload]
        return folder == self._root or folder.startswith(self._root + os.sep) or folder.endswith("(deleted)")

    def _patch(self) -> None:
        """For good: this process is here to be disturbed."""
        for name, label in (
            ("replace", "rename"), ("rename", "rename"), ("link", "link"), ("symlink", "link"),
            ("unlink", "unlink"), ("remove", "unlink"), ("mkdir", "mkdir"), ("rmdir", "rmdir"),
            ("truncate", "truncate"), ("ftruncate", "truncate"),
        ):  # fmt: skip
            setattr(os, name, self._hooked(label, getattr(os, name)))
        os.fsync = os.fdatasync = self._hooked("fsync", lambda descriptor: None)
        self._open, self._os_open, self._os_write = io.open, os.open, os.write
        builtins.open = io.open = self.open  # type: ignore[assignment]
        os.open, os.write = self.os_open, self.os_write
        ticks = itertools.count()
        time.time = time.monotonic = time.perf_counter = lambda: 1e9 + next(ticks) / 1e3
        os.getpid = lambda: 4242  # in locks, and in the names of event files
        self._patch_native_writers()

    def _hooked(self, label: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(path: Any, *arguments: Any, **options: Any) -> Any:
            target = arguments[0] if label in ("rename", "link") else path
            folder = options.get("dir_fd", options.get("dst_dir_fd"))
            if isinstance(folder, int):  # how shutil.rmtree walks
                target = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), target)
            self._step(label, target)
            return original(path, *arguments, **options)

        return hooked

    def os_open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self._step("open", path)
        return self._os_open(path, flags, *arguments, **options)

    def os_write(self, descriptor: int, data: bytes) -> int:
        done = self._step("write", descriptor, lambda: self._os_write(descriptor, data[: len(data) // 2]))
        return done + self._os_write(descriptor, data[done:])

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """The builtin, with a raw file below that counts what reaches the system."""
        if not set(mode) & set("wax+") or not self._is_inside(file):
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self._step("open", file)
        step = self._step

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                whole = bytes(data)
                done = step("write", self.name, lambda: io.FileIO.write(self, whole[: len(whole) // 2]))
                return done + super().write(whole[done:])

            def truncate(self, size: int | None = None) -> int:
                step("truncate", self.name)
                return super().truncate(size)

        raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    def _patch_native_writers(self) -> None:
        """Those of the libraries that the command has loaded."""
        if torch := sys.modules.get("torch"):
            save = torch.save

            def torch_save(document: object, f: Any, *arguments: Any, **options: Any) -> None:
                if not isinstance(f, str | os.PathLike):
                    return save(document, f, *arguments, **options)
                with self.open(f, "wb") as file:
                    return save(document, file, *arguments, **options)

            torch.save = torch_save
        if safetensors := sys.modules.get("safetensors.torch"):

            def serialize_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
                with self.open(filename, "wb") as file:
                    file.write(safetensors.serialize(tensors, metadata=metadata))

            safetensors.serialize_file = serialize_file


# ---- damage ------------------------------------------------------------------------------------------------

Kind = Literal["flip", "cut", "zero", "empty"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)


class Damage(NamedTuple):
    """One change of one file."""

    path: Path
    kind: Kind
    place: float
    """Where in the file, 0 to 1."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path} at {self.place:.4f}"

    def apply(self) -> bytes:
        """Change the file; returns what it held. An empty file stays."""
        whole = self.path.read_bytes()
        data = bytearray(whole)
        at = int(self.place * len(data))
        if self.kind == "flip" and data:
            data[at] ^= 1 << int(self.place * 8e6) % 8
        elif self.kind == "cut":
            del data[at:]
        elif self.kind == "zero":
            end = min(at + 512, len(data))
            data[at:end] = bytes(end - at)
        elif self.kind == "empty":
            data.clear()
        self.path.write_bytes(data)
        return whole


def damages(files: Sequence[Path], count: int, seed: int = 0) -> list[Damage]:
    """`count` damages at seeded places: each file and each kind in turn, so that none is left out."""
    draw = random.Random(seed)
    return [
        Damage(files[i % len(files)], KINDS[i // len(files) % len(KINDS)], draw.random())
        for i in range(count)
    ]


def one_line(result: Any, program: str) -> str:
    """The complaint of a command that failed: one line that begins with its name, and no traceback."""
    assert result.code in (1, 2), result
    assert result.err.startswith(f"{program}: "), result
    assert "Traceback" not in result.err, result
    assert result.err.count("\n") == 1, result
    assert len(result.err.splitlines()) == 1, result
    return result.err


def contents(folder: Path, opened: Callable[..., Any] = open) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too; folders without files as their name and a slash."""
    found = {}
    for place, folders, files in os.walk(folder):
        if not folders and not files and place != str(folder):
            found[os.path.relpath(place, folder) + "/"] = b""
        for name in files:
            path = os.path.join(place, name)
            if os.path.isfile(path):
                with opened(path, "rb") as file:
                    found[os.path.relpath(path, folder)] = file.read()
    return found


def restore(folder: Path, left: dict[str, bytes]) -> None:
    """Let a folder hold what `contents` has found in one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in left.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


# ---- bad invocations ---------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """A value for a flag."""

    flag: str
    """Empty for a positional argument."""
    text: str
    certain: bool
    """Whether no value of the flag's type is written like that, so that it must be refused."""

    @property
    def argv(self) -> list[str]:
        if not self.flag:
            return ["--", self.text] if self.text.startswith("-") else [self.text]
        return [f"{self.flag}={self.text}"]  # with `=`, or tyro takes a negative number for a flag


HUGE, ENDLESS = "9" * 50, "9" * 5_000
_NUMBERS = [("", True), ("x", True), ("1,5", True), ("0x10", True), ("-1", False), ("0", False),
            (HUGE, False), ("-" + HUGE, False), (ENDLESS, False)]  # fmt: skip
_VALUES: dict[type, list[tuple[str, bool]]] = {
    int: [*_NUMBERS, ("1.5", True), ("nan", True), ("1e300", True)],
    float: [*_NUMBERS, ("nan", False), ("inf", False), ("-inf", False), ("1e300", False), ("1e308", False)],
    str: [
        ("", False),
        ("\udcff", False),
        ("_", False),
        ("=", False),
        (":", False),
        ("a\nb", False),
        (ENDLESS, False),
        (f"0:{ENDLESS}", False),
        (f"1/{HUGE}", False),
        ("-1:3", False),
    ],
    bool: [("", False), ("maybe", False), (ENDLESS, False)],
}


def bad_paths(folder: Path) -> list[str]:
    """Paths that are trouble for whoever wants to read or write there; made below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_bytes(b"\xff\x00 no text")
    (folder / "folder").mkdir(exist_ok=True)
    for name, target in (("loop", "loop"), ("dangling", "gone/away"), ("zero", "/dev/zero")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    documents = folder / "documents"  # folders where JSON files are expected
    for name in ("config.json", "state.json", "manifest.json"):
        (documents / name).mkdir(parents=True, exist_ok=True)
    deep = folder / "deep"
    deep.mkdir(exist_ok=True)
    for name in ("config.json", "state.json", "manifest.json"):
        (deep / name).write_text("[" * 100_000)
    return [
        "",
        "x" * 300,
        str(folder / "/".join(["y" * 200] * 25)),
        "/dev/null",
        "/dev/null/below",
        *(str(folder / name) for name in ("file", "file/below", "folder", "loop", "dangling", "zero")),
        str(documents),
        str(deep),
        str(folder / "absent" / "below"),
        str(folder / "a\nb"),
        str(folder / "\udcff"),
    ]


def bad_invocations(config: type, folder: Path) -> Iterator[Bad]:
    """Bad values for each flag of a command, by the types of the fields of its dataclass. Paths are made
    below `folder`."""
    hints = typing.get_type_hints(config, include_extras=True)
    for field in dataclasses.fields(config):
        is_positional = "Positional" in str(hints[field.name])
        flag = "" if is_positional else "--" + field.name.replace("_", "-")
        for text, certain in _bad_values(_kinds(hints[field.name]), folder):
            yield Bad(flag, text, certain and not is_positional)
    yield Bad("--frobnicate", "1", True)


def _kinds(hint: Any) -> list[Any]:
    """What a value may be: the members of unions, the elements of sequences; a Literal stays as it is."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(hint)[0])
    if origin is Literal:
        return [hint]
    if origin in (typing.Union, types.UnionType, tuple, list):
        inner = [kind for part in typing.get_args(hint) if part is not ... for kind in _kinds(part)]
        return list(dict.fromkeys(inner))
    return [hint]


def _bad_values(kinds: list[Any], folder: Path) -> list[tuple[str, bool]]:
    """Certain is what all the kinds refuse."""
    values: dict[str, bool] = {}
    is_alone = len([kind for kind in kinds if kind is not type(None)]) == 1
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            words = [("", True), ("frobnicate", True), (str(typing.get_args(kind)[0]).upper() + "x", True)]
        elif kind is Path:
            words = [(path, False) for path in bad_paths(folder)]
        elif kind in _VALUES:
            words = _VALUES[kind]
        elif kind is type(None):
            continue
        else:
            raise TypeError(f"no bad values known for {kind}: add them")
        values |= {text: certain and is_alone for text, certain in words}
    return list(values.items())
