"""Short children's stories without end, written by rule: data for those who have no network.

    from lm.stories.write import stories
    for text in stories("train", 1000): ...

A story is a pure function of (seed, split, index). It has a hero with a want, an obstacle, a turn and an
ending; names and pronouns hold throughout. No story of one split is ever told in the other.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from random import Random
from typing import Literal

from lm.stories.lexicon import ANIMALS, BOYS, GIRLS, LISTS, MEN, PET_NAMES, WOMEN
from lm.stories.plots import OPENING, PLOTS

Split = Literal["train", "validation"]

_VALIDATION_SHARE = 16  # one story in so many is kept for validation
_SHE = {"he": "she", "him": "her", "his": "her", "himself": "herself"}
_HE = {"he": "he", "him": "him", "his": "his", "himself": "himself"}
_SLOT = re.compile(r"\{([^{}]*)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_AN = re.compile(r"(?!one\b|uni|use)[aeiou]|hour|honest", re.IGNORECASE)


def story(index: int, split: Split = "train", seed: int = 0) -> str:
    """The story number `index` of a split: seven paragraphs, one to a line."""
    attempt = 0
    while True:
        text = _Teller(Random(f"{seed} {split} {index} {attempt}")).tell()
        # The text itself decides its split, so the splits cannot share a story, whatever their seeds.
        if (zlib.crc32(text.encode()) % _VALIDATION_SHARE == 0) == (split == "validation"):
            return text
        attempt += 1


def stories(split: Split, count: int, seed: int = 0) -> Iterator[str]:
    """The first `count` stories of a split."""
    return (story(index, split, seed) for index in range(count))


def words_digest() -> str:
    """SHA-256 over all words and plots: another one means other stories."""
    everything = (ANIMALS, BOYS, GIRLS, LISTS, MEN, OPENING, PET_NAMES, PLOTS, WOMEN)
    return hashlib.sha256(repr(everything).encode()).hexdigest()


class _Teller:
    """The facts of one story, and the words it has used."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._facts: dict[str, str] = {}

    def tell(self) -> str:
        plot = PLOTS[self._rng.choice(list(PLOTS))]
        self._cast()
        self._facts["lesson"] = self._rng.choice(plot.lessons)
        # The row comes last: it may speak of the facts.
        row = (
            self._rng.choice(plot.table)
            if plot.table
            else (self._draw(self._rng.choice(["toy", "keepsake"])),)
        )
        for name, value in zip(plot.columns, row, strict=True):
            self._facts[name] = self._fill(value)
        paragraphs = [self._rng.choice(OPENING), *plot.paragraphs, self._rng.choice(plot.closings)]
        return "\n".join(re.sub(" +", " ", self._fill(paragraph)).strip() for paragraph in paragraphs)

    # ---- facts ----

    def _cast(self) -> None:
        facts, rng = self._facts, self._rng
        among_animals = rng.random() < 0.3
        # {o.he} is the third character, or the worker in a plot that has no third character.
        for role, prefix in (("hero", ""), ("friend", "f."), ("other", "o.")):
            self._character(role, prefix, among_animals)
        facts["kinds"] = "animals" if among_animals else "children"
        facts["someone"] = "somebody else"
        elder_is_woman = rng.random() < 0.5
        facts["elder"] = rng.choice(WOMEN if elder_is_woman else MEN)
        facts.update({f"e.{key}": word for key, word in (_SHE if elder_is_woman else _HE).items()})
        kinds = [kind for kind in ANIMALS if kind not in self._used]
        facts["animal"] = rng.choice(kinds)
        facts["home"], facts["sound"], facts["moved_animal"] = ANIMALS[facts["animal"]]
        for name in (
            "place",
            "color",
            "tool",
            "food",
            "toy",
            "keepsake",
            "treasure",
            "flower",
            "worker",
            "wonder",
        ):
            facts[name] = self._draw(name)

    def _character(self, role: str, prefix: str, animal: bool) -> None:
        female = self._rng.random() < 0.5
        if animal:
            kind = self._unused(tuple(ANIMALS))
            name, kind = self._unused(PET_NAMES), f"little {kind}"
        else:
            name, kind = self._unused(GIRLS if female else BOYS), "girl" if female else "boy"
            kind = self._rng.choice(["", "little ", "young "]) + kind
        self._facts[role] = name
        if role == "hero":
            self._facts["kind"] = kind
        self._facts.update({prefix + key: word for key, word in (_SHE if female else _HE).items()})

    # ---- words ----

    def _unused(self, words: tuple[str, ...]) -> str:
        for _ in range(20):  # the lists are long: the first try almost always serves
            word = self._rng.choice(words)
            if word not in self._used:
                break
        self._used.add(word)
        return word

    def _draw(self, name: str) -> str:
        return self._unused(LISTS[name])

    def _fill(self, template: str) -> str:
        """Resolve choices from the inside out, then slots from left to right."""
        while "[" in template:
            template = _CHOICE.sub(lambda match: self._rng.choice(match[1].split("|")), template)
        return _SLOT.sub(lambda match: self._slot(match[1]), template)

    def _slot(self, key: str) -> str:
        article = key[:2] in ("a ", "A ")
        name = key[2:] if article else key
        word = self._draw(name[1:].lower()) if name.startswith("+") else self._word(name.lower(), article)
        if article:
            word = ("an " if _AN.match(word) else "a ") + word
        return word[0].upper() + word[1:] if key.lstrip("+")[0].isupper() else word

    def _word(self, name: str, article: bool) -> str:
        # With an article a list gives something new; the fact of that name is spoken of as "the".
        if article and name in LISTS and name not in ("worker", "wonder", "tool"):
            return self._draw(name)
        return self._facts[name]
