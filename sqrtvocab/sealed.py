"""JSON that is read without surprises, and that tells when it has been changed since it was written."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqrtvocab.atomic import finite
from sqrtvocab.errors import UserError

SEAL = "seal"  # the field of a JSON object that holds the SHA-256 of all others


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
    plain = json.loads(json.dumps(finite(document)))
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
    if SEAL in document and document[SEAL] != _digest(rest):
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
