"""Partition against the paper's formulas, literally, and its promises on any V, G and order."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab import Partition


@st.composite
def partitions(draw):
    v = draw(st.integers(1, 300))
    g = draw(st.integers(1, v))
    seed = draw(st.none() | st.integers(0, 5))
    return Partition.identity(v, g) if seed is None else Partition.random(v, g, seed)


@st.composite
def labels_of_groups(draw):
    """The group of each class: sizes from 1 to 60, the classes of a group together or anywhere."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 9, 20, 26, 60]), min_size=1, max_size=12))
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    seed = draw(st.none() | st.integers(0, 5))
    return labels if seed is None else labels[Partition.random(len(labels), 1, seed).order]


uneven = labels_of_groups().map(Partition.from_groups)


@given(partitions())
def test_groups_are_the_papers(partition):
    v, g = partition.num_classes, partition.num_groups
    order = list(range(v)) if partition.order is None else partition.order.tolist()
    group, member = partition.split(torch.arange(v))
    for index in range(g):
        start, end = math.floor(v * index / g), math.floor(v * (index + 1) / g) - 1
        for position in range(start, end + 1):
            assert (group[order[position]], member[order[position]]) == (index, position - start)
    assert partition.sizes().tolist() == torch.bincount(group, minlength=g).tolist()
    assert partition.group_size == int(partition.sizes().max())
    assert int(partition.sizes().max()) - int(partition.sizes().min()) <= 1


@given(labels_of_groups())
def test_groups_of_any_sizes_are_those_given(labels):
    partition = Partition.from_groups(labels)
    classes = torch.arange(len(labels))
    group, member = partition.split(classes)
    assert torch.equal(group, labels)
    assert partition.sizes().tolist() == labels.bincount().tolist()
    assert partition.group_size == int(labels.bincount().max())
    for index in range(partition.num_groups):  # members are in the order of their classes
        assert member[labels == index].tolist() == list(range(int((labels == index).sum())))


@given(labels_of_groups(), st.integers(1, 30))
def test_large_groups_are_cut_into_few_equal_parts(labels, largest):
    partition = Partition.from_groups(labels, largest)
    whose = labels[partition.join(torch.arange(partition.num_groups), 0)]  # [G]
    assert torch.equal(whose[partition.split(torch.arange(len(labels)))[0]], labels)
    assert torch.equal(whose, whose.sort().values)
    for index, size in enumerate(labels.bincount().tolist()):
        parts = partition.sizes()[whose == index]
        assert len(parts) == -(-size // largest)
        assert int(parts.max()) <= largest
        assert int(parts.max() - parts.min()) <= 1


@given(labels_of_groups())
def test_buckets_hold_every_group_once_with_little_padding(labels):
    partition = Partition.from_groups(labels)
    if type(partition) is Partition:  # equal groups need none
        return
    groups = torch.cat([partition.by_size[b.first : b.stop] for b in partition.buckets])
    assert sorted(groups.tolist()) == list(range(partition.num_groups))
    assert torch.equal(groups[partition.rank], torch.arange(partition.num_groups))
    for bucket in partition.buckets:
        sizes = partition.sizes()[partition.by_size[bucket.first : bucket.stop]]
        assert int(sizes.max()) == bucket.width
        assert bucket.width <= 8 or 2 * int(sizes.min()) > bucket.width


def test_equal_groups_stay_ordinary_and_uneven_ones_do_not():
    assert type(Partition.from_groups([0, 0, 1, 1, 1])) is Partition
    assert Partition.from_groups([0, 0, 1, 1, 1]).order is None
    assert type(Partition.from_groups([1, 0, 1, 0])) is Partition
    assert type(Partition.from_groups([0, 0, 0, 1])) is not Partition
    with torch.device("meta"):  # as when a model is made before its weights are loaded
        assert Partition.from_groups([0, 0, 0, 1]).group_sizes == [3, 1]


def test_uneven_groups_grow_where_they_are_smallest():
    partition = Partition.from_groups([0, 1, 1, 1, 1, 2, 2])
    grown = partition.grow(11)
    assert torch.equal(grown.split(torch.arange(7))[0], partition.split(torch.arange(7))[0])
    assert grown.sizes().tolist() == [4, 4, 3]
    with pytest.raises(ValueError, match="only grow"):
        partition.grow(6)


def test_uneven_groups_travel_and_others_are_named():
    labels = [2, 0, 1, 1, 1, 1, 2]
    saved = Partition.from_groups(labels).state_dict()
    partition = Partition.from_groups(labels)
    partition.load_state_dict(saved)
    assert torch.equal(partition.split(torch.arange(7))[0], torch.tensor(labels))
    other = Partition.from_groups([0, 0, 0, 1, 1, 2, 2])
    with pytest.raises(ValueError, match="3 groups of 1, 4, 2 classes, this partition has 3 of 3, 2, 2"):
        other.load_state_dict(saved)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "labels must have shape"),
        ([[0, 1]], "labels must have shape"),
        ([0.0, 1.0], "labels must hold integers"),
        (["a", "b"], "labels must hold numbers"),
        ([-1, 0], "from 0 on, got -1"),
        ([0, 0, 3], "no class has label 1"),
    ],
)
def test_bad_labels_of_groups(labels, message):
    with pytest.raises(ValueError, match=message):
        Partition.from_groups(labels)
    with pytest.raises(ValueError, match=message):
        Partition.from_groups(labels, 2)


def test_a_group_has_at_least_one_class():
    with pytest.raises(ValueError, match="largest must be at least 1, got 0"):
        Partition.from_groups([0, 0, 1], 0)


@given(labels_of_groups(), st.integers(1, 10))
def test_super_classes_stand_together_in_equal_groups(labels, num_groups):
    partition = Partition.by_labels(labels * 5 - 3, min(num_groups, len(labels)))
    assert torch.equal(labels[partition.order], labels.sort().values)
    sizes = partition.sizes()
    assert int(sizes.max() - sizes.min()) <= 1
    with pytest.raises(ValueError, match="super_class must hold integers"):
        Partition.by_labels([0.5])


@given(partitions() | uneven)
def test_join_inverts_split(partition):
    classes = torch.arange(partition.num_classes)
    assert torch.equal(partition.join(*partition.split(classes)), classes)


@given(partitions() | uneven, st.integers(0, 9))
def test_padding_marks_exactly_the_slots_that_are_no_class(partition, extra):
    width = partition.group_size + extra
    padding = partition.padding(width)
    assert padding.shape == (partition.num_groups, width)
    assert int((~padding).sum()) == partition.num_classes
    slots = partition.slots(torch.arange(partition.num_groups), width)
    assert sorted(slots[~padding].tolist()) == list(range(partition.num_classes))
    group, member = partition.split(slots[~padding])
    assert torch.equal(torch.stack([group, member], 1), (~padding).nonzero())


@given(partitions() | uneven, st.integers(0, 9))
def test_columns_are_where_split_says(partition, extra):
    width = partition.group_size + extra
    group, member = partition.split(torch.arange(partition.num_classes))
    assert torch.equal(partition.columns(width), group * width + member)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("make", [Partition.identity, Partition.random])
def test_small_integer_types_do_not_overflow(make, dtype):
    partition = make(50_000, 224)
    classes = torch.tensor([0, 100, 250 if dtype == torch.uint8 else 30_000])
    assert torch.equal(torch.stack(partition.split(classes.to(dtype))), torch.stack(partition.split(classes)))
    assert partition.split(classes.to(dtype))[0].dtype == torch.int64


def test_split_keeps_any_shape():
    group, member = Partition(100, 7).split(torch.arange(24).reshape(2, 3, 4))
    assert group.shape == member.shape == (2, 3, 4)


@pytest.mark.parametrize(("v", "g"), [(1, 1), (2, 1), (50257, 224), (184320, 429), (262144, 512)])
def test_default_group_count_is_the_floor_of_the_root(v, g):
    assert Partition(v).num_groups == g


@pytest.mark.parametrize(
    ("radices", "groups"),
    [
        ((8, 4, 6, 12, 5, 2, 4, 2), 384),  # the shapes: shape x pattern x rotation x half of the colours
        ((10, 10), 10),
        ((7,), 1),
        ((5, 7), 5),
        ((1, 1, 1), 1),
        ((2, 36), 8),
    ],
)
def test_aligned_group_count(radices, groups):
    assert Partition.aligned(radices).num_groups == groups


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_aligned_members_mean_the_same_in_every_group(radices):
    partition = Partition.aligned(radices)
    v, g = partition.num_classes, partition.num_groups
    assert v % g == 0
    digits = torch.stack(torch.unravel_index(torch.arange(v), radices), 1).view(g, v // g, -1)
    # Within a group the attributes after the cut run through the same values in every group.
    cut = next(i for i in range(len(radices)) if math.prod(radices[: i + 1]) % g == 0)
    assert bool((digits[:, :, cut + 1 :] == digits[:1, :, cut + 1 :]).all())
    offset = digits[:, :, cut] - digits[:, :1, cut]
    assert bool((offset == offset[:1]).all())
    # And the attributes before it are constant in a group.
    assert bool((digits[:, :, :cut] == digits[:, :1, :cut]).all())


def test_by_frequency_puts_the_most_frequent_first():
    partition = Partition.by_frequency([1, 9, 5, 9, 0, 7], num_groups=3)
    assert partition.order.tolist() == [1, 3, 5, 2, 0, 4]
    group, _ = partition.split(torch.tensor([1, 3, 5, 2, 0, 4]))
    assert group.tolist() == [0, 0, 1, 1, 2, 2]


def test_random_depends_on_the_seed_alone():
    state = torch.get_rng_state()
    a, b, c = Partition.random(50, seed=3), Partition.random(50, seed=3), Partition.random(50, seed=4)
    assert torch.equal(a.order, b.order)
    assert not torch.equal(a.order, c.order)
    assert torch.equal(state, torch.get_rng_state())


def test_state_dict_carries_the_order():
    saved = Partition.random(50, 7)
    loaded = Partition(50, 7)
    loaded.load_state_dict(saved.state_dict())
    classes = torch.arange(50)
    assert torch.equal(loaded.split(classes)[0], saved.split(classes)[0])
    assert torch.equal(loaded.join(*loaded.split(classes)), classes)
    assert Partition(50, 7).state_dict() == {}


def test_loading_the_order_of_another_vocabulary_fails():
    with pytest.raises(RuntimeError, match="order"):
        Partition(51, 7).load_state_dict(Partition.random(50, 7).state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"num_classes": 5, "num_groups": 0}, "num_groups must be between 1 and num_classes = 5, got 0"),
        ({"num_classes": 5, "num_groups": 6}, "got 6"),
        ({"num_classes": 3, "order": torch.tensor([0, 1, 1])}, "permutation of the classes 0 to 2"),
        ({"num_classes": 3, "order": torch.tensor([1, 2, 3])}, "permutation"),
        ({"num_classes": 3, "order": torch.tensor([0, 1])}, r"shape \[3\], got \[2\]"),
        ({"num_classes": 2, "order": torch.tensor([0.0, 1.0])}, "integers"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        Partition(**arguments)


def test_bad_radices_and_counts():
    with pytest.raises(ValueError, match="radices"):
        Partition.aligned([])
    with pytest.raises(TypeError, match=r"radices must be an integer, got 2\.5"):
        Partition.aligned([2.5, 4])
    with pytest.raises(TypeError, match=r"num_groups must be an integer, got 10\.0"):
        Partition(100, 10.0)
    with pytest.raises(ValueError, match="not negative"):
        Partition.by_frequency([1, -1])
    with pytest.raises(ValueError, match="radices"):
        Partition.aligned([3, 0])
    with pytest.raises(ValueError, match="counts"):
        Partition.by_frequency(torch.ones(2, 3))


# ---- clusters ----


@given(
    v=st.integers(1, 60),
    data=st.data(),
    kind=st.sampled_from(["random", "equal", "zero"]),
    seed=st.integers(0, 3),
)
def test_clusters_fill_every_group_exactly(v, data, kind, seed):
    g = data.draw(st.integers(1, v))
    counts = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=v, max_size=v))
    torch.manual_seed(seed)
    vectors = {"random": torch.randn(v, 3), "equal": torch.ones(v, 3), "zero": torch.zeros(v, 3)}[kind]
    partition = Partition.by_clusters(vectors, g, counts, seed)
    assert sorted(partition.order.tolist()) == list(range(v))
    group, _ = partition.split(torch.arange(v))
    assert torch.equal(torch.bincount(group, minlength=g), partition.sizes())
    again = Partition.by_clusters(vectors, g, counts, seed)
    assert torch.equal(again.order, partition.order)


def planted(clusters=8, members=10, noise=0.2):
    """Vectors around a few directions, of any length, and the direction of each."""
    label = torch.arange(clusters * members) % clusters
    directions = torch.eye(clusters)[label]
    length = torch.rand(len(label), 1) * 20 + 0.1
    return length * (directions + noise * torch.rand(len(label), clusters)), label


def test_similar_vectors_share_a_group():
    vectors, label = planted()
    group, _ = Partition.by_clusters(vectors, 8).split(torch.arange(80))
    for g in range(8):
        assert len(set(label[group == g].tolist())) == 1


def test_clusters_take_any_seed_that_the_trainers_take():
    vectors, _ = planted()
    assert len(Partition.by_clusters(vectors, 8, seed=2**63 - 1).order) == 80


def test_classes_that_never_occur_do_not_spoil_the_clusters():
    """Half of the classes are noise, larger than what was learnt, and have no count."""
    vectors, label = planted()
    everything = torch.cat([vectors, 100 * torch.randn(80, 8)])
    counts = torch.cat([torch.randint(1, 1000, (80,)), torch.zeros(80, dtype=torch.int64)])
    partition = Partition.by_clusters(everything, 8, counts)
    group, member = partition.split(torch.arange(160))
    for g in range(8):
        assert len(set(label[group[:80] == g].tolist())) == 1
    assert int(member[:80].max()) == 9  # before those that never occur
    ordered = counts[partition.order].view(8, 20)
    assert bool((ordered.diff(dim=1) <= 0).all())  # the most frequent first


def test_a_cluster_that_is_too_large_keeps_the_nearest():
    """Six vectors near one direction, with room for four: the two farthest must go."""
    angles = torch.tensor([0.0, 0.01, -0.01, 0.02, 0.4, 0.5, 3.0, 3.1])
    vectors = torch.stack([angles.cos(), angles.sin()], 1)
    group, _ = Partition.by_clusters(vectors, 2).split(torch.arange(8))
    assert len(set(group[:4].tolist())) == 1
    assert set(group[4:].tolist()) == {1 - int(group[0])}


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (torch.ones(5), {}, r"vectors must have shape \[V, d\], got \[5\]"),
        (torch.full((5, 2), torch.nan), {}, "vectors must be finite"),
        (torch.ones(5, 2), {"num_groups": 6}, "num_groups must be between 1 and num_classes = 5"),
        (torch.ones(5, 2), {"counts": torch.ones(4)}, r"counts must have shape \[5\]"),
    ],
)
def test_bad_vectors(vectors, options, message):
    with pytest.raises(ValueError, match=message):
        Partition.by_clusters(vectors, **options)


def test_nobody_else_needs_scikit_learn():
    code = "import sys; import sqrtvocab; assert not {'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("order", [None, [4, 2, 0, 1, 3]])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_classes_that_do_not_exist_are_refused(order, dtype):
    partition = Partition(5, 2, None if order is None else torch.tensor(order))
    with pytest.raises(IndexError, match=r"classes must lie in \[0, 5\); observed values from 1 to 5"):
        partition.split(torch.tensor([1, 5], dtype=dtype))
    if dtype.is_signed:
        with pytest.raises(IndexError, match="observed values from -1 to -1"):
            partition.split(torch.tensor([[-1]], dtype=dtype))
    for classes in (torch.tensor([1.5]), torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(TypeError, match="classes must be integers, got"):
            partition.split(classes)
    assert partition.split(torch.tensor([], dtype=dtype))[0].shape == (0,)


@pytest.mark.parametrize("count", [-1, 0])
def test_a_random_partition_of_nothing(count):
    with pytest.raises(ValueError, match=f"num_classes must be at least 1, got {count}"):
        Partition.random(count)
    with pytest.raises(TypeError, match="num_classes must be an integer"):
        Partition.random(2.5)


@pytest.mark.parametrize("values", [[None], "abc", ["a", "b"], object(), [[1], [1, 2]], [2**70]])
def test_what_is_no_number_is_a_value_error(values):
    with pytest.raises(ValueError, match=r"^order must hold numbers: "):
        Partition(2, 1, values)
    with pytest.raises(ValueError, match=r"^counts must hold numbers: "):
        Partition.by_frequency(values)


def test_counts_are_real():
    with pytest.raises(ValueError, match=r"counts must be real numbers, got torch\.complex64"):
        Partition.by_frequency(torch.tensor([1j, 2.0]))


# ---- members matched across groups ----


def sums_of_parts(groups, size, shuffle, noise=0.05):
    """Vectors of groups x size classes, each a group's and a member's, and the numbers of both."""
    generator = torch.Generator().manual_seed(1)
    of_group = 6 * torch.randn(groups, 20, generator=generator)
    of_member = torch.randn(size, 20, generator=generator)
    vectors = (of_group[:, None] + of_member).view(-1, 20)
    vectors = vectors + noise * torch.randn(vectors.shape, generator=generator)
    shuffled = torch.randperm(len(vectors), generator=generator) if shuffle else torch.arange(len(vectors))
    return vectors[shuffled], shuffled // size, shuffled % size


def test_discovered_finds_what_groups_and_members_have_in_common():
    vectors, group, member = sums_of_parts(9, 8, shuffle=True)
    partition = Partition.discovered(vectors, 9)
    assert bool((group[partition.order].view(9, 8).diff(dim=1) == 0).all())
    assert bool((member[partition.order].view(9, 8).diff(dim=0) == 0).all())
    clusters = Partition.by_clusters(vectors, 9)
    assert not bool((member[clusters.order].view(9, 8).diff(dim=0) == 0).all())  # which nobody asked for
    assert torch.equal(partition.order, Partition.discovered(vectors, 9).order)


def test_discovered_keeps_the_clusters_where_sizes_differ_by_one():
    vectors = sums_of_parts(7, 9, shuffle=True, noise=2.0)[0][:59]
    partition, clusters = Partition.discovered(vectors, 7), Partition.by_clusters(vectors, 7)
    everyone = torch.arange(59)
    assert torch.equal(partition.split(everyone)[0], clusters.split(everyone)[0])

    def fit(some):  # how much members of one number have in common
        group, member = some.split(everyone)
        means = torch.zeros(7, 20).index_add(0, group, vectors) / some.sizes()[:, None]
        return float(torch.zeros(9, 20).index_add(0, member, vectors - means[group]).square().sum())

    assert fit(partition) > 1.3 * fit(clusters)


def test_discovered_refuses_what_are_no_vectors():
    with pytest.raises(ValueError, match=r"vectors must have shape \[V, d\], got \[3\]"):
        Partition.discovered(torch.ones(3))
    with pytest.raises(ValueError, match="vectors must be finite"):
        Partition.discovered(torch.full((3, 2), torch.nan))
