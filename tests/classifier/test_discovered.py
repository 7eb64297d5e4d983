"""Groups found in the images: what they are made of, and that a run keeps those it has."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import classifier.train  # noqa: F401  (here, so that the forked processes need not import it)
from classifier import cli, discovered
from classifier.images.shapes import Shapes
from classifier.trained import open_trained
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition

ONLY = (
    "shape=circle,star", "pattern=solid", "rotation=0", "size=tiny,huge", "texture=none", "opacity=1.0",
    "border=solid", "colour=red,blue,green",
)  # fmt: skip
TINY = (
    *(word for option in ONLY for word in ("--only", option)), "--batch-size", "6", "--accumulate", "1",
    "--workers", "0", "--eval-images", "4", "--image-size", "20", "--shuffle-labels", "3",
    "--schedule", "constant", "--eval-every", "2",
)  # fmt: skip


@pytest.fixture(scope="module")
def images():
    space = AttributeSpace.parse_only(ONLY)
    return Shapes(None, space, "notch", 10, seed=0, size=20, grey=False, shuffle_labels=3)["train"]


def test_the_first_images_of_each_class():
    labels = np.array([2, 0, 2, 2, 0, 5, 2])
    assert discovered.first_of_each(labels, 2).tolist() == [0, 1, 2, 4, 5]
    assert discovered.first_of_each(labels, 9).tolist() == list(range(7))


def test_class_vectors_are_mean_images(images):
    vectors = discovered.class_vectors(images)
    assert vectors.shape == (12, 300)
    torch.testing.assert_close(vectors.mean(0), torch.zeros(300), atol=1e-4, rtol=0)
    means = []
    for label in range(12):
        pixels, _ = images.batch(
            np.flatnonzero(images.labels == label)[: discovered.IMAGES]
        )  # [4, 20, 20, 3]
        small = pixels.astype(np.float64).reshape(-1, 10, 2, 10, 2, 3).mean((0, 2, 4))  # [10, 10, 3]
        means.append(small.transpose(2, 0, 1).ravel())
    want = np.stack(means) - np.mean(means, 0)
    torch.testing.assert_close(vectors.double(), torch.from_numpy(want), atol=1e-3, rtol=0)


def test_classes_that_look_alike_share_a_group(images):
    partition = Partition.by_clusters(discovered.class_vectors(images), 2)
    names = [images.classes[int(c)] for c in partition.classes_at(torch.arange(12))]
    assert len({"tiny" in name for name in names[:6]}) == 1  # huge shapes cover most of the picture


def test_a_resumed_run_keeps_its_groups(forked, tmp_path):
    def run(main, *argv):
        result = forked(main, argv, tmp_path, {}).wait()
        assert result.code == 0, result.err
        return result

    common = (*TINY, "--head", "grouped", "--grouping", "discovered", "--num-groups", "3")
    told = run(cli.train_main, *common, "--max-steps", "4", "--out", tmp_path / "whole").err
    assert "grouping 12 classes by their mean images" in told
    run(cli.train_main, *common, "--max-steps", "2", "--out", tmp_path / "half")
    order = json.loads((tmp_path / "half" / "last" / "order.json").read_text())
    assert sorted(order) == list(range(12))
    resumed = (*common, "--max-steps", "4", "--out", tmp_path / "half", "--resume", "auto")
    assert "by their mean images" not in run(cli.train_main, *resumed).err  # it has them
    weights = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("whole", "half")]
    assert weights[0] == weights[1]
    run(cli.eval_main, tmp_path / "half", "--workers", "0")


def test_groups_from_what_another_run_has_learnt(forked, images, alone, tmp_path):
    short = (*TINY, "--max-steps", "2")
    source = (*short, "--head", "prototype", "--backbone", "swift", "--grouping", "index")
    assert forked(cli.train_main, (*source, "--out", tmp_path / "pairs"), tmp_path, {}).wait().code == 0
    vectors = discovered.learnt_vectors(tmp_path / "pairs", images, alone)
    assert vectors.shape == (12, 256)
    model = open_trained(tmp_path / "pairs").model.eval()
    means = []
    for label in range(12):
        pixels, _ = images.batch(np.flatnonzero(images.labels == label)[: discovered.IMAGES])
        with torch.no_grad():
            hidden = model.encoder(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        means.append(F.normalize(F.normalize(hidden).mean(0), dim=0))
    want = torch.stack(means)
    torch.testing.assert_close(vectors, want - want.mean(0), atol=1e-5, rtol=0)

    grouped = (*short, "--head", "grouped", "--grouping", "discovered", "--embeddings", tmp_path / "pairs")
    result = forked(cli.train_main, (*grouped, "--out", tmp_path / "grouped"), tmp_path, {}).wait()
    assert result.code == 0, result.err
    assert f"grouping 12 classes by the embeddings of {tmp_path / 'pairs'}" in result.err
    other = forked(cli.train_main, (*grouped, "--image-size", "24"), tmp_path, {}).wait()
    assert other.code == 2
    assert "its images are 20 x 20 x 3, height x width x channels, not 24 x 24 x 3" in other.err
    index = forked(cli.train_main, (*grouped, "--grouping", "index"), tmp_path, {}).wait()
    assert "--embeddings is for --grouping clusters or discovered, not index" in index.err


def test_another_grouping_is_another_run(forked, tmp_path):
    common = (*TINY, "--head", "flat", "--max-steps", "2", "--out", tmp_path / "r")
    assert forked(cli.train_main, (*common, "--grouping", "index"), tmp_path, {}).wait().code == 0
    again = (*common, "--grouping", "clusters", "--resume", "auto")
    result = forked(cli.train_main, again, tmp_path, {}).wait()
    assert result.code == 2
    assert "grouping is 'index' there and 'clusters' here" in result.err
