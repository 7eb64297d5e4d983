"""Tokenised text in a memory-mapped file: made once, on all cores, and opened in no time ever after.

Beside the ids `NAME.bin` lies a sidecar `NAME.json`: what they were made of, how many there are, and a
checksum of each block of them. The sidecar is removed first and written last, so ids without a matching
sidecar are never taken for good. A block is checked when it is first read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from lm.text.sources import Documents, Say, Source, lasting_name
from lm.text.tokenizer import TextTokenizer
from sqrtvocab.atomic import SEAL, read_sealed, sealed, write_json
from sqrtvocab.training import RunError, UserError

FORMAT = 2  # of the sidecar
BLOCK = 1 << 14  # bytes that share a checksum: few enough to be read for the sake of one window
IGNORED = -100
_BATCH_CHARS = 1 << 21  # text tokenised at a time
_PIECE_CHARS = 1 << 18  # a document longer than this is cut, to be tokenised in parallel
_CUT = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True)
class Tokens:
    """One split of a corpus: end, text, end, text, …, text, end. So every token of a text, and every end, is
    predicted from something."""

    ids: npt.NDArray[np.unsignedinteger]  # [N], memory-mapped
    counts: npt.NDArray[np.int64]  # [V] how often each token occurs
    documents: int
    text_bytes: int  # of the texts in UTF-8, ends not counted
    checksums: npt.NDArray[np.uint32] | None = None  # CRC-32 of each `BLOCK` bytes of `ids`, to be verified
    _is_verified: bytearray = field(init=False, repr=False, compare=False)  # by block

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_is_verified", bytearray(0 if self.checksums is None else len(self.checksums))
        )

    @property
    def predictions(self) -> int:
        """All tokens but the first."""
        return len(self.ids) - 1

    def windows(self, length: int, *, partial: bool = False) -> int:
        """How many windows of `length` predictions there are; a last shorter one counts if `partial`."""
        return -(-self.predictions // length) if partial else self.predictions // length

    def batch(self, windows: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of windows, int64 [B, length] each; targets beyond the end are −100.

        Raises:
            RunError: the file has been damaged since it was written.
        """
        inputs = np.zeros((len(windows), length), np.int64)
        targets = np.full((len(windows), length), IGNORED, np.int64)
        for row, window in enumerate(windows):
            ids = self.ids[window * length : (window + 1) * length + 1]
            self._verify(window * length, len(ids))
            inputs[row, : len(ids) - 1] = ids[:-1]
            targets[row, : len(ids) - 1] = ids[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def _verify(self, start: int, count: int) -> None:
        """Check the blocks of these ids, unless that has been done. Later, this is a look at a table."""
        if self.checksums is None:
            return
        first, last = start * self.ids.itemsize // BLOCK, ((start + count) * self.ids.itemsize - 1) // BLOCK
        for block in range(first, last + 1):
            if not self._is_verified[block]:
                data = self.ids.view(np.uint8)[block * BLOCK : (block + 1) * BLOCK]
                if zlib.crc32(data.tobytes()) != self.checksums[block]:
                    file = getattr(self.ids, "filename", "the tokenised text")
                    raise RunError(
                        f"{file} has changed since it was written, near byte {block * BLOCK:,}; delete it, "
                        "and it is made again"
                    )
                self._is_verified[block] = True


@dataclass(frozen=True)
class Corpus:
    """A tokenised source."""

    train: Tokens
    validation: Tokens


def open_corpus(source: Source, tokenizer: TextTokenizer, cache: Path, say: Say) -> Corpus:
    """The tokenised source, from the cache if nothing has changed, else tokenised now.

    Raises:
        UserError: a text that cannot be read, no text at all, or a vocabulary too large for the file.
    """
    parts = {}
    for split, documents in (("train", source.train), ("validation", source.validation)):
        name = re.sub(r"[^A-Za-z0-9.]+", "-", Path(source.name).name).strip("-.") or "data"
        made_by = f"{lasting_name(source.name)}\0{tokenizer.digest}{documents.choice}"
        key = hashlib.sha256(made_by.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        path = cache / f"{name}-{split}-{key}.bin"
        parts[split] = open_tokens(path, documents, tokenizer, f"{source.name}, {split}", say)
    return Corpus(**parts)


def open_tokens(path: Path, documents: Documents, tokenizer: TextTokenizer, title: str, say: Say) -> Tokens:
    """The tokens of `documents` from the file `path`, written first if it is missing, stale or torn.

    Raises:
        UserError: as `open_corpus`.
    """
    made_of = {"format": FORMAT, "tokenizer": tokenizer.digest, "source": _digest(documents.fingerprint())}
    tokens, _ = _read(path, made_of)
    if tokens is not None:
        return tokens
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # of several processes one writes, the others wait
            tokens, problem = _read(path, made_of)
            if tokens is None:
                if problem:
                    say(f"{path}: {problem}; tokenising again")
                _write(path, documents, tokenizer, title, made_of)
                tokens, problem = _read(path, made_of)
    except OSError as error:
        raise UserError(f"--cache {path.parent}: cannot be written ({error.strerror or error})") from error
    if tokens is None:
        raise RunError(f"{path}: just written, and {problem}")
    return tokens


def _read(path: Path, made_of: dict[str, object]) -> tuple[Tokens | None, str]:
    """The tokens, or None and why they cannot be used ("" if there simply are none)."""
    sidecar = path.with_suffix(".json")
    if not sidecar.exists():
        return None, ""
    try:
        facts = read_sealed(sidecar)
        if facts["format"] != FORMAT:
            return None, "made by another version"
        if any(facts[key] != value for key, value in made_of.items()):
            return None, "the text has changed since"
        dtype, size = np.dtype(facts["dtype"]), int(facts["tokens"])
        if not path.exists() or path.stat().st_size != size * dtype.itemsize:
            return None, "the file is torn"
        ids = np.memmap(path, dtype, mode="r", shape=(size,))
        counts, checksums = np.array(facts["counts"], np.int64), np.array(facts["crc32"], np.uint32)
        facts[SEAL]  # raises if it is gone
        return Tokens(ids, counts, int(facts["documents"]), int(facts["text_bytes"]), checksums), ""
    except (UserError, ValueError, KeyError, TypeError, OSError):
        return None, f"{sidecar.name} is damaged"


def _write(
    path: Path, documents: Documents, tokenizer: TextTokenizer, title: str, made_of: dict[str, object]
) -> None:
    dtype = token_dtype(tokenizer.vocab_size)
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    draft = path.with_name(f".{path.name}.tmp")
    tokens = texts = text_bytes = 0
    checksums = _Checksums()
    try:
        with (
            draft.open("wb") as file,
            tqdm(
                total=documents.size,
                unit="B",
                unit_scale=True,
                desc=f"tokenising {title}",
                delay=1,
                leave=False,
            ) as bar,
        ):
            end = np.array([tokenizer.end], dtype).tobytes()
            file.write(end)
            checksums.add(end)
            counts[tokenizer.end] += 1
            tokens += 1
            for batch in _batches(documents):
                ids = _encode(batch, tokenizer, dtype)
                file.write(ids.tobytes())
                checksums.add(ids.tobytes())
                counts += np.bincount(ids, minlength=len(counts))
                size = sum(len(piece.encode()) for piece, _ in batch)
                tokens, text_bytes = tokens + len(ids), text_bytes + size
                texts += sum(is_last for _, is_last in batch)
                bar.update(size)
            file.flush()
            os.fsync(file.fileno())
        if texts == 0:
            raise UserError(f"--data {title}: there is no text in it")
        sidecar = path.with_suffix(".json")
        sidecar.unlink(missing_ok=True)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    facts = {
        **made_of,
        "title": title,
        "tokenizer_name": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.name,
        "tokens": tokens,
        "documents": texts,
        "text_bytes": text_bytes,
        "counts": counts.tolist(),
        "crc32": checksums.list(),
    }
    write_json(sidecar, sealed(facts))


class _Checksums:
    """The CRC-32 of each `BLOCK` bytes of what goes into a file."""

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._rest = b""

    def add(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % BLOCK
        self._whole += [zlib.crc32(data[at : at + BLOCK]) for at in range(0, whole, BLOCK)]
        self._rest = data[whole:]

    def list(self) -> list[int]:
        return self._whole + ([zlib.crc32(self._rest)] if self._rest else [])


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest of uint16 and uint32 that holds every token id.

    Raises:
        UserError: if neither does.
    """
    for dtype in (np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise UserError(f"--tokenizer: a vocabulary of {vocab_size:,} tokens does not fit into 32 bits")


def _batches(documents: Documents) -> Iterator[list[tuple[str, bool]]]:
    """Pieces of the texts, each with whether it is the last of its text: a batch may end within a text, or a
    single huge one would be tokenised, and held in memory, at once."""
    batch, chars = [], 0
    for document in documents:
        left = len(document)
        for piece in pieces(document):
            left -= len(piece)
            batch.append((piece, left == 0))
            chars += len(piece)
            if chars >= _BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch


def _encode(
    batch: Sequence[tuple[str, bool]], tokenizer: TextTokenizer, dtype: np.dtype[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """The ids of the pieces, with an end after the last one of each text."""
    ids: list[int] = []
    encoded = tokenizer.encode_batch([piece for piece, _ in batch])
    for piece_ids, (_, is_last) in zip(encoded, batch, strict=True):
        ids += piece_ids
        if is_last:
            ids.append(tokenizer.end)
    return np.array(ids, dtype)


def pieces(text: str) -> Iterator[str]:
    """A long text in parts that can be tokenised side by side.

    Cut before a single space between two words: there GPT-2's rules always begin a new word, so the ids are
    those of the whole text. (A tokenizer with other rules may differ by a token at a cut.)
    """
    start = 0
    while len(text) - start > _PIECE_CHARS:
        space = _CUT.search(text, start + _PIECE_CHARS)
        if space is None:
            break
        yield text[start : space.start()]
        start = space.start()
    yield text[start:]


def _digest(fingerprint: object) -> str:
    return hashlib.sha256(json.dumps(fingerprint).encode()).hexdigest()
