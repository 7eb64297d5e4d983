"""Sets on disk: the same bytes however they are written, and no damage that goes unnoticed."""

import io
import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from shapesgen import layout, png, render
from shapesgen.attributes import AttributeSpace
from shapesgen.choices import FORMATS, SPLITS
from shapesgen.errors import DamagedShardError, WriteError
from shapesgen.layout import read_manifest, shards_of
from shapesgen.reader import ShapesParquet
from shapesgen.recipe import Recipe
from shapesgen.verifier import verify_set
from shapesgen.writer import write_set
from sqrtvocab.errors import UserError

KEPT = {"shape": ["circle", "star"], "pattern": ["striped"], "colour": ["red"], "size": ["tiny", "huge"]}
RECIPE = Recipe(AttributeSpace.only(KEPT))  # 3,840 images
SMALL = Recipe(RECIPE.space, classes=(0, 60))
SHARD = 300  # images: RECIPE has 11 shards for train and 2 each for validation and test

# The command line with shards small enough for a test, and slow enough that it is still busy when a test on a
# busy machine comes round to sending its signal.
COMMAND = f"""
import sys
import time
from shapesgen import layout, writer
layout.SHARD_IMAGES = {SHARD}
write_shard = writer.write_shard
def write_slowly(*arguments):
    time.sleep(0.3)
    return write_shard(*arguments)
writer.write_shard = write_slowly
from shapesgen.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
ONLY = [word for name, options in KEPT.items() for word in ("--only", f"{name}={','.join(options)}")]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SHARD_IMAGES", SHARD)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECIPE written in one go by one process. Not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHARD_IMAGES", SHARD)
        out = tmp_path_factory.mktemp("whole") / "set"
        write_set(RECIPE, out)
    return out


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole`, to be changed."""
    copy = tmp_path / "set"
    copy_set(whole, copy)
    return copy


def copy_set(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            file = target / path.relative_to(source)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def start(script: Path, *arguments: str, **options) -> subprocess.Popen:
    script.write_text(COMMAND)
    command = [sys.executable, str(script), *arguments]
    # A shell ignores SIGINT in what it starts in the background, tests included, and children inherit that.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"preexec_fn": listening, **options}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def flip_bit(path: Path, at: float) -> None:
    """Change one bit at a relative place of a file."""
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 4
    path.write_bytes(data)


# --- PNG ----------------------------------------------------------------------------------------------------


def test_png_is_what_pillow_reads_and_comes_back() -> None:
    images = render(AttributeSpace.full(), np.arange(0, 184_320, 9_000), 1)
    for image, file in zip(images, png.encode(images), strict=True):
        with Image.open(io.BytesIO(file)) as opened:
            opened.load()
            assert opened.mode == "RGB"
            np.testing.assert_array_equal(np.asarray(opened), image)
        np.testing.assert_array_equal(png.decode(file), image)


def test_every_flipped_bit_and_every_cut_of_a_png_is_noticed() -> None:
    file = png.encode(render(AttributeSpace.full(), [0], 0))[0]
    for at in range(len(file)):
        bad = bytearray(file)
        bad[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match="damaged"):
            png.decode(bytes(bad))
    for cut in range(0, len(file), 7):
        with pytest.raises(ValueError, match="damaged"):
            png.decode(file[:cut])


def test_a_png_that_swells_is_refused_at_once() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    right = png.encode(render(AttributeSpace.full(), np.array([5]), 0))[0]
    size = 100 * 301
    for data in (
        zlib.compress(bytes(1 << 25)),
        zlib.compress(bytes(size + 1)),
        zlib.compress(bytes(size))[:-1],
    ):
        bomb = png.HEAD + chunk(b"IDAT", data) + right[-12:]
        tracemalloc.start()
        with pytest.raises(ValueError, match="damaged PNG: "):
            png.decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
    assert png.decode(png.HEAD + chunk(b"IDAT", zlib.compress(bytes(size))) + right[-12:]).sum() == 0


def test_a_png_of_another_program_is_refused() -> None:
    image = render(AttributeSpace.full(), [0], 0)[0]
    other = io.BytesIO()
    Image.fromarray(image).save(other, "png")
    with pytest.raises(ValueError, match="PNG"):
        png.decode(other.getvalue())


# --- writing ------------------------------------------------------------------------------------------------


def test_a_set_holds_the_recipes_images_shuffled(whole: Path) -> None:
    seen = []
    for split in SPLITS:
        data = ShapesParquet(whole, split)
        assert len(data) == RECIPE.size(split)
        rows = np.arange(len(data))
        images, labels = data.batch(rows)
        class_ids, instances = RECIPE.locate(split, RECIPE.shuffle(split, rows))
        np.testing.assert_array_equal(labels, class_ids)
        np.testing.assert_array_equal(images[::13], RECIPE.render(class_ids[::13], instances[::13]))
        assert (np.diff(labels) < 0).any()
        seen += [(c, image.tobytes()) for c, image in zip(labels.tolist(), images, strict=True)]
    assert len(seen) == len(set(seen)) == RECIPE.num_images  # no image twice in a class, over all splits


def test_the_manifest_counts_every_image(whole: Path) -> None:
    recipe, form, records = read_manifest(whole)
    assert recipe == Recipe(RECIPE.space, (0, RECIPE.space.num_classes))
    assert form == "parquet"
    assert sum(record.images for record in records.values()) == RECIPE.num_images
    for record in records.values():
        assert (whole / record.file).stat().st_size == record.bytes
    assert not list(whole.rglob(".*"))


def test_parts_and_workers_write_the_bytes_of_one_run(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    for part in ((2, 3), (3, 3), (1, 3)):
        assert not (out / "manifest.json").exists()
        summary = write_set(RECIPE, out, workers=2 if part[0] == 3 else 1, part=part)
    assert summary.missing == 0
    assert contents(out) == contents(whole)


def test_parts_in_folders_of_their_own_can_be_merged(whole: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    for part in (1, 2):
        write_set(RECIPE, tmp_path / str(part), part=(part, 2))
        copy_set(tmp_path / str(part), merged)
    with pytest.raises(UserError, match=r"not finished: 15 of 15 shards are there; run .* again"):
        ShapesParquet(merged)
    assert write_set(RECIPE, merged).kept == RECIPE.num_images
    assert contents(merged) == contents(whole)


def test_killed_and_run_again_it_writes_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for shards_before_the_kill in (2, 5):
        process = start(tmp_path / "run.py", "render", "--out", str(out), "--workers", "1", *ONLY)
        deadline = time.monotonic() + 60
        while len(list(out.glob("records/*.json"))) < shards_before_the_kill:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (out / "manifest.json").exists()
    summary = write_set(RECIPE, out)
    assert 5 * 279 <= summary.kept < RECIPE.num_images
    assert contents(out) == contents(whole)


@pytest.mark.slow
def test_killed_with_workers_leaves_none_behind_and_goes_on(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = start(tmp_path / "run.py", "render", "--out", str(out), "--workers", "2", *ONLY)
    while len(list(out.glob("records/*.json"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)  # returns when the last worker has let go of the pipe
    write_set(RECIPE, out)
    assert contents(out) == contents(whole)


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, "1"),
        pytest.param(signal.SIGINT, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "1", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_cleanly(whole: Path, tmp_path: Path, number: int, workers: str) -> None:
    out = tmp_path / "stopped"
    process = start(
        tmp_path / "run.py", "render", "--out", str(out), "--workers", workers, *ONLY, start_new_session=True
    )
    while not list(out.glob("records/*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    os.killpg(process.pid, number)  # as a terminal or a scheduler does
    _, errors = process.communicate(timeout=30)  # returns when all have ended that may complain of leaks
    assert process.returncode == 128 + number, errors
    assert errors.splitlines() == ["shapesgen: stopped; finished shards are kept, run again to continue"]
    assert not list(out.rglob(".*"))
    write_set(RECIPE, out)
    assert contents(out) == contents(whole)


def test_a_full_disk_keeps_what_is_finished(whole: Path, damaged: Path, tmp_path: Path) -> None:
    for name in (VICTIM, "test-00000-of-00002"):
        (damaged / "data" / f"{name}.parquet").unlink()
    (damaged / "manifest.json").unlink()
    limit = 100_000  # bytes a file may have, less than a shard: writing fails in the middle

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    arguments = ["render", "--out", str(damaged), "--workers", "1", *ONLY]
    process = start(tmp_path / "run.py", *arguments, preexec_fn=little_room)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert "finished shards are kept, run again" in errors
    assert not list(damaged.rglob(".*"))
    assert len(list(damaged.glob("data/*.parquet"))) == 13
    summary = write_set(RECIPE, damaged)
    assert summary.images - summary.kept == 279 + 192
    assert contents(damaged) == contents(whole)


def test_too_little_space_is_said_before_anything_is_drawn(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(UserError, match=r"3,840 images need about 0.01 GB, 0.00 GB are free"):
        write_set(RECIPE, tmp_path / "set")
    assert not list((tmp_path / "set").glob("data/*"))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_checked_and_the_same_again(form, tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert write_set(SMALL, out, form).images == 600
    assert verify_set(out) == []
    before = contents(out)
    assert write_set(SMALL, out, form).kept == 600
    assert contents(out) == before
    victim = sorted(out.rglob("*.png"))[0] if form == "folder" else next(out.glob("data/test*"))
    flip_bit(victim, 0.5)
    [problem] = verify_set(out)
    assert problem.startswith(f"{victim.relative_to(out).as_posix()}: ")
    assert write_set(SMALL, out, form).kept < 600
    assert contents(out) == before


def test_the_folder_format_is_an_image_folder(tmp_path: Path) -> None:
    write_set(SMALL, tmp_path / "set", "folder")
    classes = sorted(p.name for p in (tmp_path / "set" / "train").iterdir())
    assert classes == [f"{label:06d}" for label in range(60)]
    with Image.open(tmp_path / "set" / "test" / "000007" / "000007-00009.png") as image:
        np.testing.assert_array_equal(np.asarray(image), SMALL.render(7, 9)[0])


def test_the_folder_format_refuses_too_many_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--format folder would make 1,843,200 files; beyond 100,000"):
        write_set(Recipe(), tmp_path / "set", "folder")
    assert not (tmp_path / "set").exists()


def test_another_config_is_refused_and_nothing_changed(whole: Path, damaged: Path) -> None:
    before = contents(damaged)
    other = Recipe(RECIPE.space, seed=3, rotation_cue="none")
    with pytest.raises(UserError, match=r'seed is 0, asked for 3; rotation_cue is "notch", asked for "none"'):
        write_set(other, damaged)
    fewer = AttributeSpace.only(KEPT | {"shape": ["circle"]})
    with pytest.raises(UserError, match=r'shape is \["circle", "star"\], asked for \["circle"\]'):
        write_set(Recipe(fewer), damaged)
    with pytest.raises(UserError, match=r'format is "parquet", asked for "folder"'):
        write_set(RECIPE, damaged, "folder")
    assert contents(damaged) == before
    (damaged / "notes.txt").write_text("mine")
    write_set(SMALL, damaged, overwrite=True)
    assert verify_set(damaged) == []
    assert ShapesParquet(damaged).recipe == SMALL
    assert (damaged / "notes.txt").read_text() == "mine"


def test_a_strange_folder_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not empty, and no image set"):
            write_set(SMALL, tmp_path, overwrite=overwrite)
    assert list(contents(tmp_path)) == ["thesis.tex"]
    with pytest.raises(UserError, match=r"thesis\.tex: "):
        write_set(SMALL, tmp_path / "thesis.tex")


def test_without_held_out_images_there_are_no_such_shards(tmp_path: Path) -> None:
    write_set(Recipe(RECIPE.space, (0, 5), images_per_class=2), tmp_path / "set")
    assert verify_set(tmp_path / "set") == []
    with pytest.raises(UserError, match="no images in the test split"):
        ShapesParquet(tmp_path / "set", "test")


def test_random_sampling_goes_to_disk_as_it_is_rendered(tmp_path: Path) -> None:
    recipe = Recipe(RECIPE.space, (0, 60), sampling="random")
    write_set(recipe, tmp_path / "set")
    assert verify_set(tmp_path / "set") == []
    _, labels = ShapesParquet(tmp_path / "set").batch(np.arange(480))
    assert np.bincount(labels, minlength=60).std() > 1


# --- damage -------------------------------------------------------------------------------------------------

VICTIM = "train-00004-of-00011"  # rows 1117 to 1395


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def damage_missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [damage_truncated, damage_missing])
def test_a_torn_shard_is_named_and_repaired(damage, whole: Path, damaged: Path) -> None:
    damage(damaged / "data" / f"{VICTIM}.parquet")
    [problem] = verify_set(damaged)
    assert VICTIM in problem
    with pytest.raises(DamagedShardError, match=f"{VICTIM}.*shapesgen render.*repairs it"):
        ShapesParquet(damaged)
    ShapesParquet(damaged, "test")  # the other splits can still be read
    write_set(RECIPE, damaged)
    assert contents(damaged) == contents(whole)


@pytest.mark.parametrize("at", [0.0, 0.01, 0.3, 0.5, 0.7, 0.98, 1.0])
def test_a_flipped_bit_is_named_and_repaired(at: float, whole: Path, damaged: Path) -> None:
    path = damaged / "data" / f"{VICTIM}.parquet"
    flip_bit(path, at)
    [problem] = verify_set(damaged)
    assert VICTIM in problem
    data = ShapesParquet(damaged)
    rows = np.arange(1_100, 1_400)  # all of the shard, and some around it
    if at == 0.0:  # a reader has no use for the first bytes
        for found, expected in zip(data.batch(rows), ShapesParquet(whole).batch(rows), strict=True):
            np.testing.assert_array_equal(found, expected)
    else:
        with pytest.raises(DamagedShardError, match=VICTIM):
            data.batch(rows)
    write_set(RECIPE, damaged)
    assert contents(damaged) == contents(whole)


def test_swapped_shards_are_noticed(damaged: Path) -> None:
    a, b = (damaged / "data" / f"train-0000{i}-of-00011.parquet" for i in (1, 2))
    first = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(first)
    assert len(verify_set(damaged)) == 2


def test_a_damaged_manifest_or_record_is_rebuilt(whole: Path, damaged: Path) -> None:
    (damaged / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json is damaged, .* run .* again"):
        verify_set(damaged)
    (damaged / "records" / f"{VICTIM}.json").write_text("{")
    write_set(RECIPE, damaged)
    assert contents(damaged) == contents(whole)
    (damaged / "config.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(UserError, match=r"config.json is damaged, or from another version"):
        ShapesParquet(damaged)


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no image set"):
        ShapesParquet(tmp_path / "nothing")


def test_a_failing_write_names_the_reason(damaged: Path, monkeypatch) -> None:
    (damaged / "data" / f"{VICTIM}.parquet").unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shapesgen.writer.write_shard", full)
    with pytest.raises(WriteError, match=r"No space left on device.*finished shards are kept"):
        write_set(RECIPE, damaged)


# --- reading ------------------------------------------------------------------------------------------------


def test_shuffled_reading_equals_rendering(whole: Path) -> None:
    data = ShapesParquet(whole, "train")
    rows = np.random.default_rng(0).permutation(len(data))[:300]
    images, labels = data.batch(rows)
    np.testing.assert_array_equal(
        images, RECIPE.render(*RECIPE.locate("train", RECIPE.shuffle("train", rows)))
    )
    image, label = data[int(rows[5])]
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), images[5])
    assert label == labels[5]
    with pytest.raises(IndexError, match=r"train has images 0..3071"):
        data.batch([4_800])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_the_same(method: str, whole: Path) -> None:
    data = ShapesParquet(whole, "validation")
    expected = [data[i] for i in range(len(data))]  # mapped before the fork
    loader = DataLoader(data, batch_size=50, num_workers=2, multiprocessing_context=method)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert torch.equal(images, torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]


def test_it_pickles_without_its_maps(whole: Path) -> None:
    data = ShapesParquet(whole)
    data[0]
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[0][0], data[0][0])
    assert len(pickle.dumps(data)) < 10_000


def test_hugging_face_loads_it(whole: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    loaded = datasets.load_dataset("parquet", data_dir=str(whole), cache_dir=str(tmp_path / "cache"))
    assert {split: loaded[split].num_rows for split in loaded} == {s: RECIPE.size(s) for s in SPLITS}
    row = loaded["test"][5]
    image, label = ShapesParquet(whole, "test")[5]
    assert row["label"] == label
    np.testing.assert_array_equal(np.asarray(row["image"]), image.permute(1, 2, 0).numpy())
    assert {name: row[name] for name in RECIPE.space.names} == RECIPE.space.describe(label)
    by_card = datasets.load_dataset(str(whole), cache_dir=str(tmp_path / "cache"))
    assert by_card["train"].num_rows == RECIPE.size("train")


def test_shards_cover_every_split_evenly() -> None:
    for split in SPLITS:
        shards = [shard for shard in shards_of(RECIPE) if shard.split == split]
        assert [s.start for s in shards[1:]] == [s.end for s in shards[:-1]]
        assert shards[-1].end == RECIPE.size(split)
        sizes = [s.end - s.start for s in shards]
        assert max(sizes) <= SHARD
        assert max(sizes) - min(sizes) <= 1
