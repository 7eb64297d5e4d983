"""The cache of decoded pictures: made once, whole or not at all, and never trusted when something changed."""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from collections import namedtuple

import numpy as np
import pytest

from classifier.images import cache as module
from classifier.images.decode import decode
from sqrtvocab.errors import RunError, UserError

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)


@pytest.fixture
def root(picture, write_tree, tmp_path):
    """Two classes of six pictures: three chunks."""
    files = {f"{name}/{i}.png": picture(10 * n + i) for n, name in enumerate("ab") for i in range(6)}
    return write_tree(tmp_path / "set", files)


@pytest.fixture
def decoded(monkeypatch):
    """How many pictures have been decoded in this process."""
    calls = []

    def counted(*args):
        calls.append(args)
        return decode(*args)

    monkeypatch.setattr(module, "decode", counted)
    return calls


def everything(opened):
    return opened["train"].batch(range(len(opened["train"])))


def open_all(open_at, root, **options):
    return open_at(root, valid_fraction=0, test_fraction=0, **options)


def expected(root):
    return np.stack([decode(path.read_bytes(), 16) for path in sorted(root.rglob("*.png"))])


def folder_of(tmp_path):
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    return folder


def test_decoded_once(root, open_at, decoded):
    for _ in range(2):
        images, labels = everything(open_all(open_at, root))
        assert np.array_equal(images, expected(root))
        assert labels.tolist() == [0] * 6 + [1] * 6
        assert len(decoded) == 12
    open_all(open_at, root, size=8)
    assert len(decoded) == 24
    assert everything(open_all(open_at, root, grey=True))[0].shape == (12, 16, 16, 1)
    open_at(root, valid_fraction=0.3)  # other splits, the same pixels
    assert len(decoded) == 36


def test_changed_pictures_are_decoded_again(root, picture, encoded, open_at, decoded, capsys):
    open_all(open_at, root)
    (root / "a" / "3.png").write_bytes(encoded(picture(99)))
    images, _ = everything(open_all(open_at, root))
    assert np.array_equal(images, expected(root))
    assert "the pictures have changed since; decoding again" in capsys.readouterr().out
    (root / "a" / "9.png").write_bytes(encoded(picture(98)))
    assert len(everything(open_all(open_at, root))[0]) == 13
    assert len(list((root.parent / "cache").glob("*/pixels.bin"))) == 1  # in the place of the old one


@pytest.mark.parametrize("damage", ["flip", "cut", "sidecar", "list", "older", "gone"])
def test_a_damaged_cache_is_made_again(root, open_at, tmp_path, decoded, capsys, damage):
    open_all(open_at, root)
    folder = folder_of(tmp_path)
    pixels = folder / "pixels.bin"
    data = bytearray(pixels.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        pixels.write_bytes(data)
    elif damage == "cut":
        pixels.write_bytes(data[:-1])
    elif damage == "sidecar":
        (folder / "done.json").write_text("{")
    elif damage in ("list", "older"):
        facts = json.loads((folder / "done.json").read_text())
        facts["damaged"] = {"3": "not a picture"}  # which would be left out
        if damage == "older":
            del facts["seal"]
        (folder / "done.json").write_text(json.dumps(facts))
    else:
        pixels.unlink()
    images, _ = everything(open_all(open_at, root))
    assert np.array_equal(images, expected(root))
    assert len(decoded) == 24
    assert "decoding again" in capsys.readouterr().out


def test_interrupted_it_goes_on_where_it_was(root, open_at, tmp_path, monkeypatch, decoded):
    """In the second chunk."""
    counted = module.decode

    def interrupted(*args):
        if len(decoded) == 6:
            raise KeyboardInterrupt
        return counted(*args)

    monkeypatch.setattr(module, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_all(open_at, root)
    assert not (folder_of(tmp_path) / "done.json").exists()
    monkeypatch.setattr(module, "decode", counted)
    assert np.array_equal(everything(open_all(open_at, root))[0], expected(root))
    assert len(decoded) == 6 + 8  # of the second chunk two were lost
    assert not (folder_of(tmp_path) / "chunks").exists()


def test_a_finished_chunk_that_was_damaged_since_is_not_trusted(
    root, open_at, tmp_path, monkeypatch, decoded
):
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", _fail_at_the_end(module.write_json))
        with pytest.raises(ZeroDivisionError):
            open_all(open_at, root)
    with (folder_of(tmp_path) / "pixels.bin").open("r+b") as file:
        file.seek(5 * 16 * 16 * 3)
        file.write(b"damage")
    assert np.array_equal(everything(open_all(open_at, root))[0], expected(root))
    assert len(decoded) == 12 + 4


def _fail_at_the_end(write_json):
    def write(path, document):
        if path.name == "done.json":
            raise ZeroDivisionError
        write_json(path, document)

    return write


def test_chunks_of_other_pictures_are_not_taken_up(
    root, picture, encoded, open_at, tmp_path, monkeypatch, decoded
):
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", _fail_at_the_end(module.write_json))
        with pytest.raises(ZeroDivisionError):
            open_all(open_at, root)
    (root / "b" / "5.png").write_bytes(encoded(picture(77)))
    assert np.array_equal(everything(open_all(open_at, root))[0], expected(root))
    assert len(decoded) == 24


def _open_slowly(open_pictures, root, cache):
    def slow(*args):
        time.sleep(0.05)
        return decode(*args)

    module.CHUNK, module.decode = 4, slow
    open_pictures(root, size=16, grey=False, cache=cache, cache_limit=1.0)


def test_killed_it_goes_on_and_leaves_no_harm(root, open_at, tmp_path, decoded):
    from classifier.images.pictures import open_pictures

    context = multiprocessing.get_context("fork")
    process = context.Process(target=_open_slowly, args=(open_pictures, root, tmp_path / "cache"))
    process.start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cache").glob("*/chunks/0000000.json")):
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert np.array_equal(everything(open_all(open_at, root))[0], expected(root))
    assert len(decoded) in (8, 4)


@pytest.mark.slow
def test_several_processes_give_the_same(root, open_at, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 512)  # the others do not see what is changed here
    monkeypatch.setattr(module, "_PER_WORKER", 1)
    many = tmp_path / "many"
    for i in range(130):
        folder = many / str(i)
        folder.mkdir(parents=True)
        for path in root.rglob("*.png"):
            shutil.copy(path, folder / f"{path.parent.name}{path.name}")
    images, _ = everything(open_all(open_at, many, workers=2))
    one = np.stack([decode((many / "0" / name).read_bytes(), 16) for name in sorted(os.listdir(many / "0"))])
    assert np.array_equal(images, np.concatenate([one] * 130))


# ---- damaged pictures


def test_damaged_pictures_are_all_found_and_named(root, open_at, decoded):
    for i in range(4):
        (root / "a" / f"{i}.png").write_bytes(b"no picture")
    for i in range(3):
        path = root / "b" / f"{i}.png"
        path.write_bytes(path.read_bytes()[:60])
    for _ in range(2):
        with pytest.raises(UserError) as error:
            open_all(open_at, root)
        line = str(error.value)
        assert f"--data {root}: 7 of 12 pictures are damaged: a/0.png (" in line
        assert "a/3.png (" in line
        assert "b/0.png (" in line
        assert "b/1.png" not in line
        assert line.endswith(" and 2 more; --skip-damaged continues without them")
        assert len(line.splitlines()) == 1
        assert len(decoded) == 12  # they are known the second time
    opened = open_all(open_at, root, skip_damaged=True)
    images, labels = everything(opened)
    assert labels.tolist() == [0, 0, 1, 1, 1]
    assert np.array_equal(images[0], decode((root / "a" / "4.png").read_bytes(), 16))
    assert opened.notes[-1].startswith("left out: 7 of 12 pictures are damaged: a/0.png (")


def test_a_class_of_damaged_pictures_only(root, open_at):
    for i in range(6):
        (root / "b" / f"{i}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"without its damaged pictures the class 'b' has none left"):
        open_all(open_at, root, skip_damaged=True)


def test_files_that_a_table_lists_and_are_not_there(root, open_at, tmp_path):
    table = tmp_path / "list.csv"
    table.write_text("path,label\nset/a/1.png,a\nset/b/1.png,b\nset/b/none.png,b\n")
    with pytest.raises(UserError, match=r"1 of 3 pictures are damaged: set/b/none.png \(No such file"):
        open_all(open_at, table)


# ---- large sets


def test_on_the_fly(root, open_at, tmp_path, decoded):
    opened = open_all(open_at, root, cache_limit=1e-6)
    assert len(decoded) == 12  # the pass that finds damaged ones
    assert not list((tmp_path / "cache").rglob("pixels.bin"))
    assert np.array_equal(everything(opened)[0], expected(root))
    assert len(decoded) == 24
    open_all(open_at, root, cache_limit=1e-6)
    assert len(decoded) == 24
    (root / "a" / "2.png").write_bytes(b"damaged now")
    with pytest.raises(RunError, match=r"a/2.png was whole when the run began, and now: "):
        opened["train"].batch([2])
    with pytest.raises(UserError, match=r"1 of 12 pictures are damaged"):
        open_all(open_at, root, cache_limit=1e-6)


def test_a_set_travels_without_its_pixels(root, open_at):
    train = open_all(open_at, root)["train"]
    images, labels = train.batch([3, 1])
    sent = pickle.dumps(train)
    assert len(sent) < 12 * 16 * 16 * 3
    again, same = pickle.loads(sent).batch([3, 1])
    assert np.array_equal(again, images)
    assert np.array_equal(same, labels)


def test_not_enough_disk(root, open_at, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))
    with pytest.raises(UserError, match=r"--cache .*: not enough disk: .* --cache-limit 0"):
        open_all(open_at, root)


def test_a_cache_that_cannot_be_written(root, open_at, tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(UserError, match=r"--cache .*cache: cannot be written"):
        open_all(open_at, root)


def test_a_killed_worker_is_said(root, open_at, monkeypatch):
    def killed(*args, **kwargs):
        raise module.BrokenProcessPool("terminated abruptly")

    monkeypatch.setattr(module, "run", killed)
    with pytest.raises(RunError, match=r"a process that decodes pictures was killed \(out of memory\?\)"):
        open_all(open_at, root)


def test_the_sidecar_is_plain_json(root, open_at, tmp_path):
    open_all(open_at, root)
    facts = json.loads((folder_of(tmp_path) / "done.json").read_text())
    assert facts["pictures"] == 12
    assert facts["image"] == [16, 16, 3]
    assert len(facts["checksums"]) == 3
