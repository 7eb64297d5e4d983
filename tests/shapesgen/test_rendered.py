"""A rendered set is the same images in the same order in each of its formats."""

import pickle
import shutil

import numpy as np
import pytest
from torchvision.datasets import VisionDataset

from shapesgen import layout
from shapesgen.attributes import AttributeSpace
from shapesgen.choices import FORMATS, SPLITS
from shapesgen.errors import DamagedShardError
from shapesgen.reader import ShapesParquet
from shapesgen.recipe import Recipe
from shapesgen.rendered import ShapesFolder, open_rendered
from shapesgen.writer import write_set
from sqrtvocab.errors import UserError

RECIPE = Recipe(
    AttributeSpace.only(
        {"shape": ["circle", "star"], "pattern": ["solid"], "colour": ["red"], "size": ["huge"]}
    ),
    images_per_class=5,
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The recipe in each format, several shards to a split. Not to be changed."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHARD_IMAGES", 100)
        for form in FORMATS:
            write_set(RECIPE, folder / form, form=form)
    return folder


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(layout, "SHARD_IMAGES", 100)


@pytest.mark.parametrize("form", FORMATS)
def test_the_recipes_images_in_shuffled_order(sets, form):
    for split in SPLITS:
        data = open_rendered(sets / form, split)
        assert isinstance(data, VisionDataset)
        assert len(data) == RECIPE.size(split)
        rows = np.random.default_rng(0).permutation(len(data))[:50]
        images, labels = data.batch(rows)
        class_ids, instances = RECIPE.locate(split, RECIPE.shuffle(split, rows))
        assert np.array_equal(labels, class_ids)
        assert np.array_equal(images, RECIPE.render(class_ids, instances))
        assert np.array_equal(data.labels[rows], class_ids)
        again, _ = pickle.loads(pickle.dumps(data)).batch(rows[:3])
        assert np.array_equal(again, images[:3])


def test_their_identity_is_that_of_the_recipe(sets):
    identities = [open_rendered(sets / form, "train").identity() for form in FORMATS]
    assert identities[0] == identities[1] == identities[2]
    assert identities[0]["shape"] == "circle,star"


def test_damage_is_named(sets, tmp_path):
    for form in ("webdataset", "folder"):
        shutil.copytree(sets / form, tmp_path / form)
    label, instance = (int(x[0]) for x in RECIPE.locate("train", RECIPE.shuffle("train", [7])))
    name = f"{label:06d}-{instance:05d}.png"
    path = tmp_path / "folder" / "train" / f"{label:06d}" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedShardError, match=rf"{name} of train: damaged PNG"):
        open_rendered(tmp_path / "folder", "train").batch([3, 7])
    path.unlink()
    with pytest.raises(DamagedShardError, match=rf"{name} of train: No such file"):
        open_rendered(tmp_path / "folder", "train").batch([3, 7])
    archive = next((tmp_path / "webdataset" / "data").glob("train-00000-*"))
    data = archive.read_bytes()
    for bad in (data[: len(data) // 2], b"", b"nonsense" * 200):
        archive.write_bytes(bad)
        with pytest.raises(DamagedShardError):
            open_rendered(tmp_path / "webdataset", "train").batch(range(72))


def test_other_formats_are_refused_by_name(sets):
    with pytest.raises(UserError, match="format webdataset, not folder"):
        ShapesFolder(sets / "webdataset")
    with pytest.raises(UserError, match="format folder; ShapesParquet reads parquet"):
        ShapesParquet(sets / "folder")
