"""Texts from files, from the built-in writer and from the hub, and what is said when they cannot be had."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError

from lm.stories.lexicon import GIRLS
from lm.stories.write import stories, story
from lm.text import sources
from lm.text.sources import Files, built_in, lasting_name, open_source
from lm.text.tokenizer import END
from sqrtvocab.training import UserError

TEXTS = [f"Story {i}.\nIt is the story number {i}." for i in range(20)]


@pytest.fixture
def said():
    return []


@pytest.fixture
def opened(said):
    """`opened(path)`: the source of a path; what it says goes to `said`."""

    def open_path(path, fraction=0.1, column="text"):
        return open_source(str(path), fraction, column, said.append)

    return open_path


def write(path: Path, texts=TEXTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".txt":
        path.write_text("".join(f"{text}\n{END}\n" for text in texts))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    else:
        pq.write_table(pa.table({"text": texts, "id": list(range(len(texts)))}), path)
    return path


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet"])
def test_every_format_gives_the_same_documents(opened, tmp_path, suffix):
    source = opened(write(tmp_path / f"data.{suffix}"))
    train, validation = list(source.train), list(source.validation)
    assert len(validation) == 2
    assert sorted(train + validation) == sorted(TEXTS)
    assert list(source.train) == train  # each iteration the same


def test_validation_by_name(opened, said, tmp_path):
    write(tmp_path / "a" / "train-00000.jsonl", TEXTS[:5])
    write(tmp_path / "a" / "train-00001.parquet", TEXTS[5:9])
    write(tmp_path / "TinyStories-valid.txt", TEXTS[9:12])
    write(tmp_path / "test.txt", TEXTS[12:])
    (tmp_path / "notes.md").write_text("not data")
    source = opened(tmp_path)
    assert sorted(source.train) == sorted(TEXTS[:9])
    assert list(source.validation) == TEXTS[9:12]
    assert "left out, as their names say test: test.txt" in said[0]


@pytest.mark.parametrize("name", ["U.JSONL", "P.Parquet"])
def test_a_suffix_may_be_in_capitals(opened, tmp_path, name):
    write(tmp_path / name.lower()).rename(tmp_path / name)
    assert list(Files((tmp_path / name,))) == TEXTS
    assert len(list(opened(tmp_path).train)) == 18


def test_names_that_mean_the_same_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lasting_name("s.txt") == str(tmp_path.resolve() / "s.txt")
    for name in ("auto", "tinystories", "stories", "stories:200"):
        assert lasting_name(name) == name


@pytest.mark.parametrize("fraction", [0.05, 0.25, 0.5])
def test_valid_fraction(opened, tmp_path, fraction):
    source = opened(write(tmp_path / "x.txt"), fraction)
    assert len(list(source.validation)) == 20 * fraction
    assert not set(source.validation) & set(source.train)
    few = opened(write(tmp_path / "few.txt", TEXTS[:3]), 0.01)
    assert (len(list(few.train)), len(list(few.validation))) == (2, 1)  # never none


def test_a_file_without_separator_is_one_document_and_says_so(opened, said, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("word " * 1000)
    source = opened(path, 0.1)
    train, validation = list(source.train), list(source.validation)
    assert (len(train), len(validation)) == (1, 1)
    assert train[0].count("word") == 900
    assert validation[0].count("word") == 100
    assert said == [f"{path}: no {END} in it, so it is taken as one document"]


def test_separators_across_blocks(opened, tmp_path, monkeypatch):
    path = write(tmp_path / "x.txt")
    for block in (1, 5, 13, 64):
        monkeypatch.setattr(sources, "_BLOCK", block)
        assert list(Files((path,))) == TEXTS


def test_empty_documents_and_a_byte_order_mark_vanish(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(f"\ufeffone{END}  \n {END}{END}two".encode())
    assert list(Files((path,))) == ["one", "two"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_nulls_are_skipped(opened, tmp_path, suffix):
    source = opened(write(tmp_path / f"x.{suffix}", [None, *TEXTS[:4], None, *TEXTS[4:]]))
    assert len(list(source.validation)) == 2
    assert sorted([*source.train, *source.validation]) == sorted(TEXTS)


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_not_utf8_names_file_and_offset(tmp_path, suffix):
    path = tmp_path / f"latin.{suffix}"
    line = json.dumps({"text": "good"}) if suffix == "jsonl" else f"good{END}"
    prefix = (line + "\n").encode() + b'{"text": "caf'
    path.write_bytes(prefix + b'\xe9 is not UTF-8"}\n')
    with pytest.raises(UserError) as error:
        list(Files((path,)))
    assert str(error.value).startswith(f"--data {path}: not UTF-8 at byte {len(prefix)} (0xe9)")


def test_bad_files_are_refused_in_one_line(opened, tmp_path):
    def complaint(path, **options):
        with pytest.raises(UserError) as error:
            list(opened(path, **options).train)
        assert "\n" not in str(error.value)
        assert str(error.value).startswith(f"--data {path}: ")
        return str(error.value)

    assert "no such file or folder" in complaint(tmp_path / "none")
    assert "no .txt, .jsonl, .parquet file" in complaint(tmp_path)
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert "the file is empty" in complaint(empty)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a"}\n{"text": \n')
    assert "line 2 is not JSON" in complaint(broken)
    broken.write_text('{"story": "a"}\n')
    assert "line 1 has no text in the field 'text' (found: story)" in complaint(broken)
    assert list(Files((broken,), "story")) == ["a"]
    broken.write_text('{"text": null}\n{"text": 5}\n')
    assert "line 2 has no text in the field 'text'" in complaint(broken)
    fake = tmp_path / "fake.parquet"
    fake.write_text("PAR")
    assert "not a readable Parquet file" in complaint(fake)
    pq.write_table(pa.table({"label": [1]}), fake)
    assert "no column 'text' (found: label)" in complaint(fake)
    assert "the column 'label' holds no text" in complaint(fake, column="label")
    pq.write_table(pa.table({"text": pa.array([b"caf\xe9"]).view(pa.string())}), fake)
    assert "the column 'text' is not UTF-8" in complaint(fake)
    broken.write_text('{"text": "a"}\n{"text": "half a smile \\ud83d"}\n')
    assert r"line 2 holds \ud83d, half of a surrogate pair" in complaint(broken)
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(UserError, match=r"--data .*folder\.txt: cannot be read \(Is a directory\)"):
        list(Files((tmp_path / "folder.txt",)))
    only = write(tmp_path / "only" / "valid.txt")
    assert "no file to train on" in complaint(only.parent)


def test_built_in_stories(opened):
    source = opened("stories:200")
    assert next(iter(source.train)) == story(0)
    assert len(list(source.train)) == 200
    assert len(list(source.validation)) == 50
    assert opened("stories").name == "stories:40000"
    with pytest.raises(UserError, match="--data stories:0: expected at least one"):
        opened("stories:0")


def test_one_other_word_makes_other_stories(monkeypatch):
    before = [built_in(200).train.fingerprint(), built_in(200).train.fingerprint()]
    assert before[0] == before[1]
    rare = next(word for word in GIRLS if word not in " ".join(stories("train", 50)))
    monkeypatch.setattr(
        "lm.stories.write.GIRLS", tuple(f"{word}a" if word == rare else word for word in GIRLS)
    )
    assert built_in(200).train.fingerprint() != before[0]


# ---- the hub ----


NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    """`endpoint(address)`: from now on the hub is there, and its cache in `tmp_path`."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def move(address: str) -> None:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)

    return move


def test_no_network(opened, endpoint):
    endpoint(NOWHERE)
    with pytest.raises(UserError) as error:
        opened("tinystories")
    assert str(error.value).startswith(f"--data tinystories: {NOWHERE} does not answer: ")
    for way in ("--data FILE", "--data stories", "run again with a network"):
        assert way in str(error.value)


def test_told_to_be_offline(opened, endpoint, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set and it is not in the cache"):
        opened("tinystories")


def test_auto_falls_back_loudly(opened, endpoint, said):
    endpoint(NOWHERE)
    source = opened("auto")
    assert source.name == "stories:40000"
    assert "BUILT-IN STORIES" in source.note
    assert said[0].startswith("WARNING: TinyStories is not at hand")
    assert next(iter(source.train)) == story(0)


def test_download_then_cache(opened, endpoint, hub, said):
    address, log = hub
    for where in (address, NOWHERE):  # the second time without a network
        endpoint(where)
        for data in ("auto", "tinystories"):
            source = opened(data)
            assert source.name == "tinystories"
            assert list(source.train) == ["One.", "Two.", "Three."]
            assert list(source.validation) == ["Four.", "Five."]
    assert log.read_text().count("GET TinyStories-train.txt") == 1
    assert said == []


def test_a_server_that_has_no_such_file(opened, endpoint, hub, monkeypatch):
    endpoint(hub[0])
    monkeypatch.setattr(sources, "TINYSTORIES", "someone/nothing")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", _missing)
    with pytest.raises(UserError, match="--data tinystories: EntryNotFoundError: no such file; give a copy"):
        opened("tinystories")


def _missing(*arguments, **options):
    raise EntryNotFoundError("no such file")
