"""Where texts come from: TinyStories, built-in stories, or the user's files, as a stream of documents."""

from __future__ import annotations

import codecs
import json
import math
import re
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from lm.stories.write import Split, stories, words_digest
from lm.text.tokenizer import END
from sqrtvocab.atomic import parse_json
from sqrtvocab.errors import shortened
from sqrtvocab.training import UserError

SUFFIXES = (".txt", ".jsonl", ".parquet")
BUILT_IN_STORIES = 40_000
_BLOCK = 1 << 22  # bytes read at a time
_STORY_BYTES = 1065  # mean length of a built-in story, for the progress bar
_BUILT_IN = re.compile(r"stories(?::([0-9]+(?:_[0-9]+)*))?")
_MOST_STORIES = 10**12
_VALIDATION_NAME = re.compile(r"(?:^|[^a-z])(?:valid|validation|val|dev)(?:[^a-z]|$)")
_TEST_NAME = re.compile(r"(?:^|[^a-z])test(?:[^a-z]|$)")

TINYSTORIES = "roneneldan/TinyStories"
_FILES = ("TinyStories-train.txt", "TinyStories-valid.txt")
WAYS_OUT = (
    "give a copy with --data FILE, or use --data stories (built in), "
    "or run again with a network (an unfinished download is resumed)"
)
Say = Callable[[str], None]


class Documents(ABC):
    """One split of a source: texts in a fixed order, each iteration the same."""

    size: int  # bytes of text, an estimate for the progress bar
    choice: str = ""  # what of the source is taken, where flags decide that

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """The texts, without surrounding white space; none is empty.

        Raises:
            UserError: naming the file and the place in it that cannot be read.
        """

    @abstractmethod
    def fingerprint(self) -> object:
        """JSON-able; another one means that the texts may have changed."""


@dataclass(frozen=True)
class Source:
    """Texts for training and for validation."""

    name: str  # identifies the source, such as a path
    train: Documents
    validation: Documents
    note: str = ""  # what the user must know about this choice


@dataclass(frozen=True)
class Stories(Documents):
    """The first `count` built-in stories of a split."""

    split: Split
    count: int

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.count * _STORY_BYTES

    def __iter__(self) -> Iterator[str]:
        return stories(self.split, self.count)

    def fingerprint(self) -> object:
        # The words and plots themselves; and the first stories, which show a change of how they are told.
        return [
            self.split,
            self.count,
            words_digest(),
            "".join(islice(stories(self.split, self.count), 50)),
        ]


@dataclass(frozen=True)
class Files(Documents):
    """Documents in text, JSONL or Parquet files, in the order of the files.

    Args:
        paths: the files.
        text_column: the field of JSONL and Parquet files that holds the text.
        part: None for all documents; or ("train" | "validation", fraction), to keep one document in so many
            for validation. A single document is cut in two instead.
        say: called with what the user should know about the files.
    """

    paths: tuple[Path, ...]
    text_column: str = "text"
    part: tuple[Split, float] | None = None
    say: Say = print

    @property
    def size(self) -> int:  # type: ignore[override]
        whole = sum(path.stat().st_size for path in self.paths)
        if self.part is None:
            return whole
        split, fraction = self.part
        return int(whole * (fraction if split == "validation" else 1 - fraction))

    @property
    def choice(self) -> str:  # type: ignore[override]
        is_all = self.part is None and self.text_column == "text"
        return "" if is_all else json.dumps([self.part, self.text_column])

    def fingerprint(self) -> object:
        stats = [(str(path.resolve()), path.stat()) for path in self.paths]
        return [self.part, self.text_column, [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]]

    def __iter__(self) -> Iterator[str]:
        documents = (
            document for path in self.paths for text in self._read(path) if (document := text.strip())
        )
        return documents if self.part is None else self._split(documents, *self.part)

    def _split(self, documents: Iterator[str], split: Split, fraction: float) -> Iterator[str]:
        first, second = next(documents, None), next(documents, None)
        if first is None:
            return
        if second is None:
            yield _cut_in_two(first, split, fraction)
            return
        for index, document in enumerate(chain([first, second], documents)):
            # Spread evenly: as many as the fraction asks for among any number of documents, and the first.
            held_out = math.ceil((index + 1) * fraction) > math.ceil(index * fraction)
            if held_out == (split == "validation"):
                yield document

    def _read(self, path: Path) -> Iterator[str]:
        readers = {".jsonl": self._read_jsonl, ".parquet": self._read_parquet}
        try:
            yield from readers.get(path.suffix.lower(), self._read_text)(path)
        except OSError as error:
            raise UserError(f"--data {path}: cannot be read ({error.strerror or error})") from error

    def _read_text(self, path: Path) -> Iterator[str]:
        separator, pending, offset, found = END.encode(), bytearray(), 0, False
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                start = max(0, len(pending) - len(separator))  # only what is new needs searching
                pending += block
                while (stop := pending.find(separator, start)) >= 0:
                    found, start = True, 0
                    yield _decode(pending[:stop], path, offset)
                    del pending[: stop + len(separator)]
                    offset += stop + len(separator)
        if not found:
            self.say(f"{path}: no {END} in it, so it is taken as one document")
        rest = _decode(pending, path, offset)
        pending.clear()  # the rest may be the whole file, and large
        yield rest

    def _read_jsonl(self, path: Path) -> Iterator[str]:
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = _decode(line, path, offset)
                offset += len(line)
                if not text.strip():
                    continue
                try:
                    record = parse_json(text)
                except ValueError as error:
                    raise UserError(f"--data {path}: line {number} is not JSON ({error})") from error
                if isinstance(record, dict) and record.get(self.text_column, "") is None:
                    continue  # a null is no text, as in Parquet
                if not isinstance(record, dict) or not isinstance(record.get(self.text_column), str):
                    fields = ", ".join(record) if isinstance(record, dict) else type(record).__name__
                    raise UserError(
                        f"--data {path}: line {number} has no text in the field {self.text_column!r} "
                        f"(found: {fields}); name it with --text-column"
                    )
                try:
                    record[self.text_column].encode()
                except UnicodeEncodeError as error:
                    half = f"\\u{ord(error.object[error.start]):04x}"
                    raise UserError(
                        f"--data {path}: line {number} holds {half}, half of a surrogate pair: no character"
                    ) from error
                yield record[self.text_column]

    def _read_parquet(self, path: Path) -> Iterator[str]:
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(path)
            columns = table.schema_arrow.names
            if self.text_column not in columns:
                raise UserError(
                    f"--data {path}: no column {self.text_column!r} (found: {', '.join(columns)}); "
                    "name it with --text-column"
                )
            for batch in table.iter_batches(batch_size=1024, columns=[self.text_column]):
                for value in batch.column(0).to_pylist():
                    if value is not None and not isinstance(value, str):
                        raise UserError(f"--data {path}: the column {self.text_column!r} holds no text")
                    yield value or ""
        except UnicodeDecodeError as error:
            raise UserError(
                f"--data {path}: the column {self.text_column!r} is not UTF-8 ({error})"
            ) from error
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise UserError(f"--data {path}: not a readable Parquet file ({error})") from error


def open_source(data: str, valid_fraction: float, text_column: str, say: Say) -> Source:
    """The source that the flag `--data` names.

    Args:
        data: "auto", "tinystories", "stories", "stories:N", or the path of a file or folder.
        valid_fraction: share of the documents kept for validation where no file is named so.
        text_column: see `Files`.
        say: called with what the user should know.

    Raises:
        UserError: no such file, no text in it, or no network.
    """
    if data == "auto":
        return _auto(say)
    if data == "tinystories":
        return _tinystories(say)
    if match := _BUILT_IN.fullmatch(data):
        digits = (match[1] or str(BUILT_IN_STORIES)).replace("_", "").lstrip("0")
        if len(digits) > len(str(_MOST_STORIES)):
            raise UserError(f"--data {shortened(data)}: expected at most {_MOST_STORIES:,} stories")
        return built_in(int(digits or "0"))
    path = Path(data)
    try:
        if path.is_dir():
            return _folder(path, valid_fraction, text_column, say)
        if not path.is_file():
            raise UserError(
                f"--data {data}: no such file or folder; expected auto, tinystories, stories, stories:N or a "
                "path"
            )
        _require_content(path)
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise UserError(f"--data {shortened(data)}: cannot be read ({error.strerror or error})") from error
    return _by_fraction(data, (path,), valid_fraction, text_column, say)


def lasting_name(data: str) -> str:
    """What `--data` names, in words that mean the same in any working folder: a path is made absolute."""
    if data in ("auto", "tinystories") or _BUILT_IN.fullmatch(data):
        return data
    return str(Path(data).resolve())


def built_in(count: int = BUILT_IN_STORIES, note: str = "") -> Source:
    """The built-in stories, and a fortieth as many (at least 50) for validation."""
    if count < 1:
        raise UserError(f"--data stories:{count}: expected at least one story")
    validation = max(50, count // 40)
    return Source(f"stories:{count}", Stories("train", count), Stories("validation", validation), note)


# ---- TinyStories ----


def _auto(say: Say) -> Source:
    problem = tinystories_problem()
    if problem is None:
        return _tinystories(say)
    note = f"TinyStories is not at hand ({problem}), so these are BUILT-IN STORIES, simpler than TinyStories"
    say(f"WARNING: {note}; {WAYS_OUT}")
    return built_in(note=note)


def _tinystories(say: Say) -> Source:
    from huggingface_hub import hf_hub_download

    if problem := tinystories_problem():
        raise UserError(f"--data tinystories: {problem}; {WAYS_OUT}")
    paths = []
    for name in reversed(_FILES):  # the small file first: what is wrong shows soon
        try:
            # What is cached is taken without asking the server, which would take half a minute offline.
            path = _cached(name) or hf_hub_download(TINYSTORIES, name, repo_type="dataset")
        except Exception as error:  # its own errors, the HTTP library's, and the system's
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UserError(f"--data tinystories: {reason}; {WAYS_OUT}") from error
        paths.append(Path(path))
    valid, train = paths
    return Source("tinystories", Files((train,), say=say), Files((valid,), say=say))


def tinystories_problem() -> str | None:
    """Why TinyStories cannot be had, or None if it is in the cache or its server answers."""
    from huggingface_hub import constants

    if all(_cached(name) for name in _FILES):
        return None
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and it is not in the cache"
    # The library would try five times, for half a minute. One short question is enough to know.
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError:
        pass  # an answer, if not a nice one
    except (OSError, ValueError) as error:
        return f"{constants.ENDPOINT} does not answer: {getattr(error, 'reason', error)}"
    return None


def _cached(name: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(TINYSTORIES, name, repo_type="dataset")
    return path if isinstance(path, str) else None


# ---- the user's files ----


def _folder(folder: Path, valid_fraction: float, text_column: str, say: Say) -> Source:
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise UserError(f"--data {folder}: no {', '.join(SUFFIXES)} file in that folder")
    for path in paths:
        _require_content(path)
    names = {path: str(path.relative_to(folder)).lower() for path in paths}
    validation = tuple(path for path in paths if _VALIDATION_NAME.search(names[path]))
    test = [path for path in paths if path not in validation and _TEST_NAME.search(names[path])]
    if test:
        say(f"{folder}: left out, as their names say test: {', '.join(path.name for path in test)}")
    train = tuple(path for path in paths if path not in validation and path not in test)
    if not train:
        raise UserError(f"--data {folder}: no file to train on: the names of all say validation or test")
    if not validation:
        return _by_fraction(str(folder), train, valid_fraction, text_column, say)
    training = Files(train, text_column, say=say)
    return Source(str(folder), training, replace(training, paths=validation))


def _by_fraction(name: str, paths: Sequence[Path], fraction: float, text_column: str, say: Say) -> Source:
    train = Files(tuple(paths), text_column, ("train", fraction), say)
    quiet = replace(train, part=("validation", fraction), say=lambda line: None)  # once is enough
    return Source(name, train, quiet)


def _require_content(path: Path) -> None:
    if path.stat().st_size == 0:
        raise UserError(f"--data {path}: the file is empty")


def _decode(data: bytes | bytearray, path: Path, offset: int) -> str:
    if offset == 0 and data.startswith(codecs.BOM_UTF8):
        data, offset = data[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise UserError(
            f"--data {path}: not UTF-8 at byte {at:,} (0x{data[error.start]:02x}); "
            "convert it, for example with iconv"
        ) from error


def _cut_in_two(document: str, split: Split, fraction: float) -> str:
    """The front or the back of a document, cut at the white space nearest to the fraction."""
    middle = int(len(document) * (1 - fraction))
    space = re.search(r"\s", document[middle:])
    middle += space.start() if space else 0
    return (document[:middle] if split == "train" else document[middle:]).strip()
