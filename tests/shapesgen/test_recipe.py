"""What a set contains: splits that are disjoint, complete and the same everywhere."""

import json

import numpy as np
import pytest

from shapesgen.attributes import AttributeSpace
from shapesgen.choices import SPLITS
from shapesgen.recipe import Recipe

SMALL = AttributeSpace.only({"shape": ["circle", "star"], "colour": ["red", "blue"], "opacity": [1.0]})


def contents(recipe: Recipe) -> dict[str, list[tuple[int, int]]]:
    """Split -> its (class, instance) pairs."""
    pairs = {}
    for split in SPLITS:
        class_ids, instances = recipe.locate(split, np.arange(recipe.size(split)))
        pairs[split] = list(zip(class_ids.tolist(), instances.tolist(), strict=True))
    return pairs


def test_the_default_is_the_papers_set() -> None:
    recipe = Recipe()
    assert recipe.num_images == 1_843_200
    assert [recipe.size(split) for split in SPLITS] == [1_474_560, 184_320, 184_320]


@pytest.mark.parametrize("images_per_class", [3, 9, 10, 25])
def test_balanced_splits_hold_every_class_and_every_image_once(images_per_class: int) -> None:
    recipe = Recipe(space=SMALL, images_per_class=images_per_class)
    pairs = contents(recipe)
    everything = [pair for split in SPLITS for pair in pairs[split]]
    assert len(everything) == len(set(everything)) == recipe.num_images
    for split in SPLITS:
        classes = [class_id for class_id, _ in pairs[split]]
        counts = np.bincount(classes, minlength=SMALL.num_classes)
        assert (counts == recipe.per_class[split]).all()
        assert counts.min() >= 1


def test_random_sampling_draws_about_as_many_and_never_an_image_twice() -> None:
    recipe = Recipe(space=SMALL, sampling="random", images_per_class=30)
    pairs = contents(recipe)
    everything = [pair for split in SPLITS for pair in pairs[split]]
    assert len(everything) == len(set(everything)) == recipe.num_images
    options = SMALL.decode([class_id for class_id, _ in everything])
    for attribute, radix in enumerate(SMALL.radices):  # independent and uniform: within five sigma
        counts = np.bincount(options[:, attribute], minlength=radix)
        expected = len(everything) / radix
        assert np.abs(counts - expected).max() <= 5 * np.sqrt(expected)
    per_class = np.bincount(SMALL.encode(options), minlength=SMALL.num_classes)
    assert 0.7 < per_class.var() / 30 < 1.3  # Poisson, not balanced
    assert contents(Recipe(space=SMALL, sampling="random", images_per_class=30, seed=1)) != pairs


def test_a_range_of_classes_keeps_their_ids() -> None:
    pairs = contents(Recipe(space=SMALL, classes=(5, 9)))
    assert {class_id for class_id, _ in pairs["test"]} == {5, 6, 7, 8}
    random = contents(Recipe(space=SMALL, classes=(5, 9), sampling="random"))
    assert {class_id for class_id, _ in random["train"]} == {5, 6, 7, 8}


@pytest.mark.parametrize("classes", [None, (3, 4), (3, 40)])
def test_the_shuffle_is_a_permutation_and_any_part_of_it_can_be_asked_for(classes) -> None:
    recipe = Recipe(space=SMALL, classes=classes)
    for split in SPLITS:
        size = recipe.size(split)
        order = recipe.shuffle(split, np.arange(size))
        assert sorted(order) == list(range(size))
        np.testing.assert_array_equal(recipe.shuffle(split, np.arange(size // 2, size)), order[size // 2 :])
        if size > 100:
            assert np.mean(order == np.arange(size)) < 0.05
            neighbours = np.abs(np.diff(order))
            assert np.median(neighbours) > size / 6  # a random permutation: 0.29
    first = Recipe(space=SMALL, seed=1).shuffle("train", np.arange(50))
    assert (first != Recipe(space=SMALL, seed=2).shuffle("train", np.arange(50))).any()


def test_the_config_is_json_and_rebuilds_the_recipe() -> None:
    recipe = Recipe(SMALL, (2, 7), 4, "random", 11, "none")
    assert Recipe.from_config(json.loads(json.dumps(recipe.to_config()))) == recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": (5, 5)}, "classes must be A:B with 0 <= A < B <= 184320, got 5:5"),
        ({"classes": (0, 184_321)}, "got 0:184321"),
        ({"images_per_class": 0}, "images_per_class must be 1..16384, got 0"),
        ({"images_per_class": 16_385}, "got 16385"),
        ({"sampling": "uniform"}, "sampling must be one of balanced, random, got 'uniform'"),
        ({"seed": -1}, "seed must be"),
        ({"rotation_cue": "arrow"}, "rotation_cue must be one of notch, none"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)


def test_an_index_outside_the_split_is_refused() -> None:
    with pytest.raises(IndexError, match=r"test has images 0..184319, got 184320..184320"):
        Recipe().locate("test", [184_320])
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'val'"):
        Recipe().size("val")  # type: ignore[arg-type]
