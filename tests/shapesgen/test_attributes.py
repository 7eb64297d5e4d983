"""The codec between class ids and attributes: a bijection, in the paper's order, for every sub-space."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapesgen.attributes import ATTRIBUTES, OPTIONS, AttributeSpace

FULL = AttributeSpace.full()

sub_spaces = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from(options), min_size=1, unique=True) for name, options in OPTIONS.items()}
)


def test_the_full_space_is_the_papers() -> None:
    assert FULL.num_classes == 184_320
    assert FULL.radices == (8, 4, 6, 12, 5, 2, 4, 2)


def test_all_ids_round_trip() -> None:
    ids = np.arange(FULL.num_classes)
    options = FULL.decode(ids)
    assert options.shape == (184_320, 8)
    assert len(np.unique(options, axis=0)) == 184_320
    np.testing.assert_array_equal(FULL.encode(options), ids)


def test_ids_count_through_the_table_like_nested_loops() -> None:
    nested = itertools.product(*OPTIONS.values())
    for class_id, options in zip(range(2_000), nested, strict=False):
        assert tuple(FULL.describe(class_id).values()) == options
    assert tuple(FULL.describe(184_319).values()) == tuple(o[-1] for o in OPTIONS.values())


@given(sub_spaces, st.data())
def test_a_sub_space_renumbers_densely_and_remembers_the_full_ids(kept: dict, data: st.DataObject) -> None:
    space = AttributeSpace.only(kept)
    some = data.draw(st.lists(st.integers(0, space.num_classes - 1), min_size=1, max_size=50))
    ids = np.array(some)
    np.testing.assert_array_equal(space.encode(space.decode(ids)), ids)
    np.testing.assert_array_equal(space.class_ids(space.full_ids(ids)), ids)
    for class_id, full_id in zip(ids, space.full_ids(ids), strict=True):
        assert space.describe(class_id) == FULL.describe(full_id)
        assert space.class_id(**space.describe(class_id)) == class_id


@given(sub_spaces)
def test_the_config_is_json_and_rebuilds_the_space(kept: dict) -> None:
    space = AttributeSpace.only(kept)
    assert AttributeSpace.from_config(json.loads(json.dumps(space.to_config()))) == space


def test_options_keep_the_papers_order_and_numbers_match_by_value() -> None:
    space = AttributeSpace.only({"shape": ["star", "circle", "star"], "opacity": [1, 0.5], "rotation": [60]})
    assert space.options["shape"] == ("circle", "star")
    assert space.options["opacity"] == ("0.5", "1.0")
    assert space.options["rotation"] == ("60",)


def test_the_values_of_a_flag_name_a_sub_space() -> None:
    """Of an attribute that is given twice, both values count."""
    space = AttributeSpace.parse_only(["shape=star", "opacity=1,0.5", "shape=circle"])
    assert space == AttributeSpace.only({"shape": ["circle", "star"], "opacity": ["0.5", "1.0"]})
    assert AttributeSpace.parse_only([]) == FULL


def test_any_leading_shape_is_accepted() -> None:
    ids = np.arange(24).reshape(2, 3, 4)
    assert FULL.decode(ids).shape == (2, 3, 4, 8)
    np.testing.assert_array_equal(FULL.encode(FULL.decode(ids)), ids)
    assert FULL.decode([]).shape == (0, 8)
    assert FULL.decode(7).shape == (8,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FULL.decode([0, 184_320]), "class id must be 0..184319, got 0..184320"),
        (lambda: FULL.decode(-1), "class id must be 0..184319, got -1"),
        (lambda: FULL.decode([0.5]), "must be integers"),
        (lambda: FULL.encode([0] * 7), r"shape \[..., 8\], got \[7\]"),
        (lambda: FULL.encode([0, 4, 0, 0, 0, 0, 0, 0]), "pattern: option index must be 0..3, got 4"),
        (
            lambda: AttributeSpace.only({"color": ["red"]}),
            "unknown attribute 'color' .*'colour'.*valid: shape, ",
        ),
        (
            lambda: AttributeSpace.only({"shape": ["sqare"]}),
            "unknown shape 'sqare' .*'square'.*valid: circle, ",
        ),
        (lambda: AttributeSpace.only({"opacity": [0.3]}), "unknown opacity '0.3'.*valid: 0.25, 0.5"),
        (lambda: AttributeSpace.only({"shape": []}), "keep at least one option"),
        (lambda: AttributeSpace.only({"shape": "star"}), "expected a list"),
        (lambda: AttributeSpace.parse_only(["shape"]), "expected ATTRIBUTE=OPTION,... got 'shape'"),
        (lambda: AttributeSpace.parse_only(["shape="]), "unknown shape ''"),
        (lambda: FULL.class_id(shape="star"), "missing: pattern, rotation, "),
        (lambda: AttributeSpace.only({"shape": ["star"]}).class_ids([0]), "outside this space.*shape"),
        (lambda: AttributeSpace(((0,),) * 7), "8 attributes, got 7"),
        (lambda: AttributeSpace(((9,),) * 8), "shape: expected ascending indices below 8"),
    ],
)
def test_bad_input_names_what_is_wrong(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_option_outside_a_sub_space_is_refused() -> None:
    space = AttributeSpace.only({"shape": ["star"]})
    attributes = dict(zip(ATTRIBUTES, (o[0] for o in OPTIONS.values()), strict=True))
    with pytest.raises(ValueError, match="shape circle is not in this space"):
        space.class_id(**attributes)
