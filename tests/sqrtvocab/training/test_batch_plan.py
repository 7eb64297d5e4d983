"""The batch plan: every item once an epoch, the same for any number of ranks, from any step."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqrtvocab.training import BatchPlan

sizes = st.integers(1, 5)


def step_items(plans: list[BatchPlan], step: int) -> list[int]:
    """All items of one step, over all ranks."""
    return [item for plan in plans for batch in plan.batches(step, step + 1) for item in batch]


@given(
    num_items=st.integers(5, 60), batch_size=sizes, accumulate=sizes, world_size=sizes, seed=st.integers(0, 9)
)
def test_an_epoch_deals_out_every_item_once(num_items, batch_size, accumulate, world_size, seed):
    plans = [
        BatchPlan(num_items, batch_size, accumulate, seed, rank, world_size) for rank in range(world_size)
    ]
    plan = plans[0]
    seen: list[int] = []
    for step in range(plan.steps_per_epoch):
        items = step_items(plans, step)
        assert len(items) == plan.items(step)
        assert plan.items_before(step) == len(seen)
        for one in plans:
            batches = list(one.batches(step, step + 1))
            assert len(batches) == one.micro_batches(step) >= 1
            assert all(1 <= len(batch) <= batch_size for batch in batches)
        seen += items
    assert len(seen) == len(set(seen))
    left_out = num_items - len(seen)
    assert 0 <= left_out < world_size  # a remainder too small to give every rank one


def test_ranks_together_see_what_one_process_sees():
    alone = BatchPlan(50, 12, 1, seed=3)
    ranks = [BatchPlan(50, 3, 2, seed=3, rank=rank, world_size=2) for rank in range(2)]
    for step in range(2 * alone.steps_per_epoch):
        assert set(step_items(ranks, step)) == set(step_items([alone], step))


def test_starting_in_the_middle_continues_the_order():
    plan = BatchPlan(23, 2, 3, seed=1)
    whole = list(plan.batches(0, 11))
    skipped = sum(plan.micro_batches(step) for step in range(6))
    assert list(plan.batches(6, 11)) == whole[skipped:]
    assert len(plan.batches(6, 11)) == len(whole) - skipped


def test_epochs_and_seeds_differ():
    orders = [
        list(itertools.chain(*BatchPlan(40, 40, 1, seed).batches(epoch, epoch + 1)))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert all(np.array_equal(sorted(order), np.arange(40)) for order in orders)


def test_fewer_items_than_ranks_is_refused():
    with pytest.raises(ValueError, match="1 training items cannot be shared by 2 ranks"):
        BatchPlan(1, 1, 1, 0, world_size=2)
