"""Steps of several items of each class: equal shares, resumable, the same for any number of ranks."""

import numpy as np
import pytest

from sqrtvocab.training.class_plan import ClassPlan


def make(labels, per_class=2, batch_size=8, accumulate=1, seed=0, **options):
    labels = np.asarray(labels)
    return ClassPlan(labels, int(labels.max()) + 1, per_class, batch_size, accumulate, seed, **options)


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 5))


def classes_of(items, labels=LABELS):
    return labels[np.asarray(items)]


@pytest.mark.parametrize("per_class", [2, 4])
def test_every_batch_holds_whole_classes_without_repetition(per_class):
    plan = make(LABELS, per_class)
    for items in plan.batches(0, 40):
        labels, counts = np.unique(classes_of(items), return_counts=True)
        assert set(counts) == {per_class}
        assert len(labels) * per_class == 8
        assert len(set(items)) == 8


def test_every_class_comes_equally_often():
    plan = make(LABELS)
    assert plan.steps_per_epoch == 8  # 30 classes, 4 a step
    seen = np.concatenate([classes_of(items) for items in plan.batches(0, 30)])  # 120 classes: four epochs
    assert set(np.bincount(seen)) == {2 * 4}
    images = np.concatenate(list(plan.batches(0, 300)))
    assert set(images.tolist()) == set(range(len(LABELS)))


def test_or_as_often_as_it_has_items():
    labels = np.repeat([0, 1, 2], [20, 6, 5])
    plan = make(labels, batch_size=4, balance="frequency")
    seen = np.concatenate(
        [labels[items] for items in plan.batches(0, 15 * 2)]
    )  # 10 + 3 + 2 = 15: four epochs
    assert np.bincount(seen).tolist() == [2 * 4 * 10, 2 * 4 * 3, 2 * 4 * 2]


def test_a_step_is_a_function_of_seed_and_number_alone():
    whole = list(make(LABELS).batches(0, 12))
    assert list(make(LABELS).batches(7, 12)) == whole[7:]
    assert list(make(LABELS, seed=1).batches(0, 12)) != whole
    hard = np.array([[1, 2, 3], [4, 5, 6]])
    mixed = []
    for start in (0, 5):
        plan = make(LABELS, batch_size=24)
        plan.mix_in(hard)
        mixed.append(list(plan.batches(start, 9)))
    assert mixed[0][5:] == mixed[1]


@pytest.mark.parametrize("hard", [False, True])
def test_any_number_of_ranks_sees_the_same_steps(hard):
    table = np.array([[1, 2, 3], [4, 5, 6]])
    one = make(LABELS, batch_size=8, accumulate=4)
    ranks = [make(LABELS, batch_size=8, accumulate=2, rank=rank, world_size=2) for rank in range(2)]
    for plan in (one, *ranks):
        if hard:
            plan.mix_in(table)
        assert plan.items(3) == plan.effective_batch == 32
        assert plan.items_before(3) == 96
    for step in range(5):
        alone = sorted(np.concatenate(list(one.batches(step, step + 1))).tolist())
        shares = [np.concatenate(list(plan.batches(step, step + 1))) for plan in ranks]
        assert sorted(np.concatenate(shares).tolist()) == alone


def test_hard_classes_come_together():
    plan = make(LABELS, batch_size=24)  # 12 classes, 10 of them from the table
    plan.mix_in(np.array([[0, 10, 20], [1, 11, 21], [2, 12, 22], [3, 13, 23], [-1, -1, -1]]))
    for items in plan.batches(0, 20):
        labels = set(classes_of(items).tolist())
        assert len(labels) == 12
        assert sum({first, first + 10, first + 20} <= labels for first in range(4)) >= 3
    plan.mix_in(np.full((4, 3), -1))  # none
    assert list(plan.batches(0, 9)) == list(make(LABELS, batch_size=24).batches(0, 9))


def test_classes_with_too_few_items_and_held_out_ones_take_no_part():
    labels = np.repeat([0, 1, 2, 3], [1, 2, 3, 4])
    plan = make(labels, batch_size=4, allowed=np.array([True, True, True, False]))
    plan.mix_in(np.array([[1, 3], [3, 1], [2, 0]]))
    assert plan.classes.tolist() == [1, 2]
    seen = {label for items in plan.batches(0, 20) for label in labels[items].tolist()}
    assert seen == {1, 2}


def test_more_room_than_classes():
    plan = make(np.repeat([0, 1, 2], 3), batch_size=16)
    assert plan.steps_per_epoch == 1
    (items,) = plan.batches(0, 1)
    assert len(items) == 16


def test_what_cannot_be_planned():
    with pytest.raises(ValueError, match="a batch of 8 does not hold whole classes of 3"):
        make(LABELS, 3)
    with pytest.raises(ValueError, match="1 classes have 2 items each: at least two must"):
        make([0, 0, 1, 2])
