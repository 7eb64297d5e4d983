"""Tokenised files: exact ids, opened without work the second time, rebuilt when stale or torn."""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch

from lm.stories.write import stories
from lm.text import corpus
from lm.text.corpus import Tokens, open_corpus, open_tokens, pieces, token_dtype
from lm.text.sources import Files, open_source
from lm.text.tokenizer import END
from sqrtvocab.training import RunError, UserError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "data" / "story.txt"
    path.parent.mkdir()
    path.write_text("".join(f"{story}\n{END}\n" for story in stories("train", 30)))
    return path


@pytest.fixture
def build(text, gpt2, tmp_path):
    """`build()`: the tokens of all of `text`; `build.said` holds what it said."""
    said = []

    def open_all(tokenizer=gpt2) -> Tokens:
        return open_tokens(tmp_path / "c" / "x.bin", Files((text,)), tokenizer, "a test", said.append)

    open_all.said = said
    return open_all


def test_ids_are_those_of_the_texts_with_ends_around(build, gpt2):
    tokens = build()
    expected = [gpt2.end]
    for story in stories("train", 30):
        expected += [*gpt2.encode(story), gpt2.end]
    assert tokens.ids.tolist() == expected
    assert tokens.ids.dtype == np.uint16
    assert tokens.documents == 30
    assert tokens.text_bytes == sum(len(story.encode()) for story in stories("train", 30))
    assert np.array_equal(tokens.counts, np.bincount(expected, minlength=50257))


def test_the_second_opening_tokenises_nothing(build, monkeypatch):
    first = build()
    monkeypatch.setattr(corpus, "_encode", None)  # would be called to tokenise
    assert np.array_equal(build().ids, first.ids)
    assert build.said == []


def test_changed_text_is_tokenised_again(build, text):
    build()
    text.write_text(f"Something else.{END}And more.")
    tokens = build()
    assert tokens.documents == 2
    assert "the text has changed since" in build.said[0]


@pytest.mark.parametrize("damage", ["short", "gone", "sidecar", "json"])
def test_a_torn_file_is_tokenised_again(build, tmp_path, damage):
    first = build().ids.tolist()
    binary, sidecar = tmp_path / "c" / "x.bin", tmp_path / "c" / "x.json"
    if damage == "short":
        with binary.open("r+b") as file:
            file.truncate(100)
    elif damage == "gone":
        binary.unlink()
    elif damage == "sidecar":
        sidecar.unlink()
    else:
        sidecar.write_text(sidecar.read_text()[:50])
    assert build().ids.tolist() == first


def test_another_tokenizer_has_another_file(text, gpt2, small_tokenizer, tmp_path):
    source = open_source(str(text), 0.2, "text", print)
    one = open_corpus(source, gpt2, tmp_path / "cache", print)
    two = open_corpus(source, small_tokenizer, tmp_path / "cache", print)
    assert len(two.train.ids) > len(one.train.ids)
    assert two.train.text_bytes == one.train.text_bytes
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 4
    assert one.validation.documents == 6


def test_killed_while_tokenising_leaves_nothing_that_is_taken_for_good(
    build, text, gpt2, tmp_path, monkeypatch
):
    child = os.fork()
    if child == 0:
        encode = corpus._encode
        monkeypatch.setattr(corpus, "_BATCH_CHARS", 1000)

        def slow(*arguments):
            time.sleep(0.05)
            return encode(*arguments)

        monkeypatch.setattr(corpus, "_encode", slow)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        build()
        os._exit(0)
    draft = tmp_path / "c" / ".x.bin.tmp"
    while not (draft.exists() and draft.stat().st_size > 500):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (tmp_path / "c" / "x.bin").exists()
    assert build().documents == 30
    assert not draft.exists()


def test_a_failure_leaves_nothing(gpt2, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(f"good{END}".encode() + b"\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 17"):
        open_tokens(tmp_path / "c" / "x.bin", Files((path,)), gpt2, "a test", print)
    path.write_text(f" {END} \n")
    with pytest.raises(UserError, match="--data a test: there is no text in it"):
        open_tokens(tmp_path / "c" / "x.bin", Files((path,)), gpt2, "a test", print)
    assert {file.suffix for file in (tmp_path / "c").iterdir()} <= {".lock"}


def test_a_cache_that_cannot_be_written(build, tmp_path):
    (tmp_path / "c").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"--cache .*: cannot be written"):
        build()


def test_ctrl_c_while_tokenising_leaves_nothing(build, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus, "_encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build()
    assert {file.suffix for file in (tmp_path / "c").iterdir()} <= {".lock"}


def test_text_that_cannot_be_read_is_not_the_caches_fault(gpt2, tmp_path):
    (tmp_path / "x.txt").mkdir()
    with pytest.raises(UserError, match=r"--data .*x\.txt: cannot be read"):
        open_tokens(tmp_path / "c" / "x.bin", Files((tmp_path / "x.txt",)), gpt2, "a test", print)


def test_a_changed_block_is_found_when_it_is_first_read(build, small_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 256)  # 128 ids
    before = build(small_tokenizer).batch(range(40), 16)  # verified: windows of every block and across blocks
    path = tmp_path / "c" / "x.bin"
    data = bytearray(path.read_bytes())
    data[3 * 256 + 100] ^= 4  # in window (768 + 100) / 2 / 16 = 27
    path.write_bytes(data)
    tokens = build(small_tokenizer)
    for row, before_row in zip(tokens.batch(range(23), 16), before, strict=True):
        assert torch.equal(row, before_row[:23])
    with pytest.raises(RunError, match=r"x\.bin has changed since it was written, near byte 768; delete it"):
        tokens.batch([27], 16)
    with pytest.raises(
        RunError, match="near byte 768"
    ):  # a window of the same block, though not of that byte
        tokens.batch([25], 16)


@pytest.mark.parametrize("field", ["tokens", "counts", "crc32", "seal"])
def test_a_changed_sidecar_is_not_believed(build, tmp_path, field):
    first = build().ids.tolist()
    sidecar = tmp_path / "c" / "x.json"
    facts = json.loads(sidecar.read_text())
    facts.pop(field)
    sidecar.write_text(json.dumps(facts))
    assert build().ids.tolist() == first
    assert build.said[0].endswith("x.json is damaged; tokenising again")


def test_a_path_has_one_cache_however_it_is_written(text, small_tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(text.parent)
    for name in (str(text), text.name):
        open_corpus(open_source(name, 0.2, "text", print), small_tokenizer, tmp_path / "cache", print)
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 2


def test_fractions_and_columns_do_not_drive_each_other_out(small_tokenizer, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"text": f"one {i}", "body": f"two {i}"}) + "\n" for i in range(20)))
    said = []
    for _ in range(2):
        sizes = [
            open_corpus(
                open_source(str(path), fraction, column, said.append),
                small_tokenizer,
                tmp_path / "c",
                said.append,
            ).validation.documents
            for fraction, column in ((0.1, "text"), (0.2, "text"), (0.1, "body"))
        ]
        assert sizes == [2, 4, 2]
    assert len(list((tmp_path / "c").glob("*.bin"))) == 6
    assert said == []


def test_sidecar_says_what_the_ids_are(build, gpt2, tmp_path):
    build()
    facts = json.loads((tmp_path / "c" / "x.json").read_text())
    assert facts["tokenizer"] == gpt2.digest
    assert facts["vocab_size"] == 50257
    assert facts["dtype"] == "uint16"
    assert sum(facts["counts"]) == facts["tokens"]


def test_dtypes():
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32
    assert token_dtype(2**32) == np.uint32
    with pytest.raises(UserError, match="does not fit into 32 bits"):
        token_dtype(2**32 + 1)


def test_long_texts_are_cut_without_changing_a_token(gpt2, monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE_CHARS", 50)
    text = "It's  two spaces,\n\n a newline and a space; don't -- 12 34.5 é 東京 🦊.\t tab" * 8
    parts = list(pieces(text))
    assert len(parts) > 5
    assert "".join(parts) == text
    assert [i for part in parts for i in gpt2.encode(part)] == gpt2.encode(text)
    assert list(pieces("x" * 1000)) == ["x" * 1000]


def test_a_huge_text_is_tokenised_in_batches(gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_BATCH_CHARS", 200)
    monkeypatch.setattr(corpus, "_PIECE_CHARS", 50)
    told = list(stories("train", 12))
    texts = ["short", " ".join(told), "x" * 300, "word " * 60, "two words", "é " * 45 + "é", *told[:3], "end"]
    path = tmp_path / "x.txt"
    path.write_text(END.join(texts))
    expected = [gpt2.end]
    for text in texts:
        expected += [*gpt2.encode(text.strip()), gpt2.end]
    encode, sizes = corpus._encode, []

    def watched(batch, *arguments):
        sizes.append([len(piece) for piece, _ in batch])
        return encode(batch, *arguments)

    monkeypatch.setattr(corpus, "_encode", watched)
    tokens = open_tokens(tmp_path / "c" / "x.bin", Files((path,)), gpt2, "a test", print)
    assert tokens.ids.tolist() == expected
    assert tokens.documents == len(texts)
    assert tokens.text_bytes == sum(len(text.strip().encode()) for text in texts)
    assert len(sizes) > 20
    assert all(sum(batch[:-1]) < 200 for batch in sizes)  # over the limit by the last piece at most


def test_windows():
    tokens = Tokens(np.arange(11, dtype=np.uint16), np.ones(11, np.int64), 1, 11)
    assert tokens.windows(4) == 2
    assert tokens.windows(4, partial=True) == 3
    inputs, targets = tokens.batch([0, 2], 4)
    assert inputs.tolist() == [[0, 1, 2, 3], [8, 9, 0, 0]]
    assert targets.tolist() == [[1, 2, 3, 4], [9, 10, -100, -100]]
