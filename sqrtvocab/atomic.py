"""Files and folders that are either whole or absent, whatever moment the power goes; and JSON documents that
tell when they have been changed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from sqrtvocab.errors import UserError

SEAL = "seal"  # the field of a JSON object that holds the SHA-256 of all others
PROBE = (
    ".probe-"  # how a file's name begins that `require_space` makes; a kill may leave it where each has one
)


def fsync(path: Path) -> None:
    """Wait until `path` (a file, or a folder's list of names) is on the disk."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: object) -> None:
    """Write `document` to `path` as indented JSON, by `write_text`. A number that is not finite becomes null:
    JSON has none, and strict readers refuse the whole file."""
    plain = _finite(document)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # the path of a file whose name is not UTF-8, say
        text = json.dumps(plain, indent=2)
    write_text(path, text + "\n")


def _finite(document: object) -> object:
    if isinstance(document, Mapping):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, whose only error is a ValueError: brackets a thousand deep would be a RecursionError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """The document in the file `path`.

    Raises:
        UserError: naming the file, if there is none, if it cannot be read, or if it is not JSON.
    """
    try:
        if path.exists() and not path.is_file():  # a device might never end
            raise UserError(f"{path}: not a regular file")
        return parse_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise UserError(f"{path}: not valid JSON ({error})") from error


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as JSON will give it back, with a field by which `read_sealed` knows whether another has
    changed."""
    plain = json.loads(json.dumps(_finite(document)))
    plain.pop(SEAL, None)
    return {**plain, SEAL: _digest(plain)}


def read_sealed(path: Path, hint: str = "") -> dict[str, Any]:
    """The JSON object in the file `path`, its seal included. Older versions wrote none: then nothing is known
    of changes.

    Args:
        hint: what to add to the message for a file that has changed.

    Raises:
        UserError: as `read_json`; or it is no object; or a field has changed since it was `sealed`.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(document).__name__}")
    rest = {name: value for name, value in document.items() if name != SEAL}
    try:
        is_sound = SEAL not in document or document[SEAL] == _digest(rest)
    except RecursionError:  # just not too deep to be read
        is_sound = False
    if not is_sound:
        raise UserError(f"{path} has changed since it was written{hint}")
    return document


def sealed_line(record: Mapping[str, Any]) -> bytes:
    """The record as a line of a JSONL file, with a checksum: a number with one digit changed is a number."""
    plain = json.dumps(record)  # in ASCII: half a surrogate pair, which no encoding takes, can be kept
    return f'{plain[:-1]}, "crc": {zlib.crc32(plain.encode())}}}\n'.encode()


def read_sealed_line(line: bytes) -> dict[str, Any]:
    """The record in a line of `sealed_line`. Older versions wrote no checksum: then nothing is known of
    changes.

    Raises:
        ValueError: it is damaged.
    """
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    crc = record.pop("crc", None)
    if crc is not None and crc != zlib.crc32(json.dumps(record).encode()):
        raise ValueError("changed since it was written")
    return record


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def write_text(path: Path, text: str, replace: bool = True) -> None:
    """`write_bytes` of `text` in UTF-8. What is no text, such as a byte of a file name, is spelled out."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), replace)


def write_bytes(path: Path, data: bytes, replace: bool = True) -> None:
    """Write `data` to `path`; a reader sees the old file or the new one, never half of it.

    Several processes may do so at once. `replace=False`: a file that is there stays.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with claimed(draft) as file:
        if replace or not path.exists():
            file.truncate(0)  # what a process that died here has left
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)
    fsync(path.parent)


@contextlib.contextmanager
def claimed(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[BinaryIO]:
    """`path`, made if need be, open for writing and this process's alone until the block ends; then it is
    removed, unless the block has renamed it.

    While another process has it, `waiting` is called again and again. A claim ends with its process, however
    that ends. Where the file system knows no locks everybody gets in.
    """
    while True:
        file = path.open("ab")
        if _lock(file) and _is_open_as(path, file):
            break
        file.close()  # another process has it, or had it, and has removed or renamed it by now
        waiting()
        time.sleep(0.02)
    try:
        yield file
    finally:
        if _is_open_as(path, file):
            path.unlink()
        file.close()


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder under another name, which becomes `path` when the block ends, with all that is in it; if the
    block fails, nothing is left.

    Raises:
        FileExistsError: there is something at `path`, perhaps since the block began.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    with claimed(path.with_name(f".{path.name}.lock")):
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        shutil.rmtree(draft, ignore_errors=True)  # of a process that died here
        draft.mkdir()
        try:
            yield draft
            draft.rename(path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    fsync(path.parent)


def is_claimed(path: Path) -> bool:
    """Whether another process has `path` in a block of `claimed`."""
    try:
        with path.open("rb") as file:
            return not _lock(file)
    except FileNotFoundError:
        return False


def _lock(file: BinaryIO) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _is_open_as(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def require_space(folder: Path, needed: int) -> None:
    """Raise `UserError` unless `folder` (which need not exist) can be written and checkpoints of `needed`
    bytes fit on its disk, those that it holds already included."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing, prefix=PROBE):
            pass
    except OSError as error:
        raise UserError(f"--out {folder}: cannot write in {existing}: {error.strerror}") from error
    free = shutil.disk_usage(existing).free
    held = sum(file.stat().st_size for file in folder.glob("*/*"))
    if free + held < needed:
        raise UserError(
            f"--out {folder}: not enough disk: {free / 1e9:.1f} GB free, "
            f"the checkpoints of this model need {needed / 1e9:.1f} GB"
        )
