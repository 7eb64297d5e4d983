"""Labels of shapes shuffled: the images stay, the numbers of the classes tell nothing."""

import json

import numpy as np
import pytest

from classifier.images.shapes import Shapes
from shapesgen.attributes import AttributeSpace

SPACE = AttributeSpace.parse_only(("shape=circle,star", "pattern=solid", "rotation=0", "texture=none"))


def open_shapes(seed):
    return Shapes(None, SPACE, "notch", 10, 0, 50, False, shuffle_labels=seed)


def test_the_same_images_under_other_numbers():
    plain, mixed, other = (open_shapes(seed)["train"] for seed in (None, 1, 2))
    rows = np.arange(0, len(plain), 37)
    pixels, labels = plain.batch(rows)
    mixed_pixels, mixed_labels = mixed.batch(rows)
    assert np.array_equal(pixels, mixed_pixels)
    assert np.array_equal(mixed.labels[rows], mixed_labels)
    assert sorted(set(mixed.labels)) == sorted(set(plain.labels))
    assert np.mean(mixed_labels == labels) < 0.1
    assert not np.array_equal(mixed.labels, other.labels)
    assert [mixed.classes[label] for label in mixed_labels] == [plain.classes[label] for label in labels]
    assert mixed.space is None
    assert mixed.ceiling() == plain.ceiling()


def test_all_splits_have_the_same_numbers():
    names = [list(open_shapes(3)[split].classes[:50]) for split in ("train", "validation", "test")]
    assert names[0] == names[1] == names[2]


def test_a_run_on_shuffled_labels_is_trained_resumed_and_scored(train, score, tmp_path):
    flags = ("--shuffle-labels", 5, "--grouping", "random", "--max-steps", 2, "--out", tmp_path / "run")
    assert train(*flags).code == 0
    assert not (tmp_path / "run" / "last" / "classes.json").exists()
    assert score(tmp_path / "run").code == 0
    assert json.loads((tmp_path / "run" / "eval-test.json").read_text())["classes"] == 48
    refused = train("--resume", tmp_path / "run", "--max-steps", 3, "--shuffle-labels", 6)
    assert refused.code == 2
    assert "shuffle labels is 5 there and 6 here" in refused.err
    assert train("--resume", tmp_path / "run", "--max-steps", 3).code == 0


@pytest.mark.parametrize("grouping", [(), ("--grouping", "aligned")])
def test_nothing_can_be_aligned(train, grouping):
    result = train("--shuffle-labels", 5, *grouping)
    assert result.code == 2
    assert "--grouping aligned: nothing tells how these classes are made; use index or random" in result.err
