"""Which documents and paragraphs are kept, and which are for validation: nothing twice, nothing in both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

VALIDATION = 50  # one document in so many
_LONGEST = 60_000  # characters of a document: a dictionary is many
_SHORTEST = 200
_TELLING = 32  # letters of a paragraph at least that may not come twice; what is shorter is a heading
_RUN, _RUN_OF_CHARACTERS = 5, 12  # words; characters where words are not set apart: Thai, Japanese, Chinese
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+")
_PARAGRAPHS = re.compile(r"\n(?:[ \t]*\n)+")


@dataclass(frozen=True)
class Document:
    """A text and where it is from."""

    package: str
    path: str  # in the package, with "#2" for the third part of a long file
    text: str

    @property
    def digest(self) -> bytes:
        """A random number that follows from package and path: splits and the order in the files go by it."""
        return hashlib.sha256(f"{self.package}\0{self.path}".encode()).digest()

    @property
    def is_validation(self) -> bool:
        return int.from_bytes(self.digest[:8], "big") % VALIDATION == 0


def paragraphs(text: str) -> list[str]:
    """The parts of a text between empty lines."""
    return [part for part in _PARAGRAPHS.split(text) if part.strip()]


def parts(document: Document) -> Iterator[Document]:
    """A long document in several, cut between paragraphs."""
    pending: list[str] = []
    number = length = 0
    for paragraph in paragraphs(document.text):
        if pending and length + len(paragraph) > _LONGEST:
            yield replace(document, path=f"{document.path}#{number}", text="\n\n".join(pending))
            pending, length, number = [], 0, number + 1
        pending.append(paragraph)
        length += len(paragraph)
    path = f"{document.path}#{number}" if number else document.path
    yield replace(document, path=path, text="\n\n".join(pending))


class Novelty:
    """Remembers paragraphs, by their letters alone: other case, digits, marks or line ends are no news."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def new_part(self, document: Document) -> Document | None:
        """The document without paragraphs that were seen before; None if less than half is left: a page in
        another format, a licence, or scraps."""
        kept: list[str] = []
        keys: set[bytes] = set()
        for paragraph in paragraphs(document.text):
            letters = "".join(_WORD.findall(paragraph.casefold()))
            if len(letters) >= _TELLING:
                key = hashlib.blake2b(letters.encode(), digest_size=8).digest()
                if key in self._known or key in keys:
                    continue
                keys.add(key)
            kept.append(paragraph)
        text = "\n\n".join(kept)
        if len(text) < max(_SHORTEST, len(document.text) / 2):
            return None
        self._known |= keys
        return replace(document, text=text)


def shingles(paragraph: str) -> set[str]:
    """All runs of five words, or of twelve characters where most words are single ones."""
    words = _WORD.findall(paragraph.casefold())
    length = _RUN_OF_CHARACTERS if sum(map(len, words)) < 2 * len(words) else _RUN
    return {" ".join(words[at : at + length]) for at in range(len(words) - length + 1)}


def split(
    documents: Sequence[Document], watch: Callable[[Sequence[Document]], Iterable[Document]]
) -> tuple[list[Document], list[Document]]:
    """Documents to train on and for validation, each in the order of their digests.

    A paragraph for validation with half of its `shingles` in the training text is left out.

    Args:
        watch: wraps the long loop, for a progress bar.
    """
    ordered = sorted(documents, key=lambda document: document.digest)
    train = [document for document in ordered if not document.is_validation]
    held_out = [document for document in ordered if document.is_validation]
    asked = set().union(*(shingles(part) for document in held_out for part in paragraphs(document.text)))
    met: set[str] = set()
    for document in watch(train):
        for paragraph in paragraphs(document.text):
            met |= shingles(paragraph) & asked
    valid = []
    for document in held_out:
        kept = [part for part in paragraphs(document.text) if not _is_known(shingles(part), met)]
        text = "\n\n".join(kept)
        if len(text) >= _SHORTEST:
            valid.append(replace(document, text=text))
    return train, valid


def _is_known(mine: set[str], met: set[str]) -> bool:
    return bool(mine) and 2 * len(mine & met) >= len(mine)
