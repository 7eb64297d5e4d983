"""The estimate of a step on a GPU counts what can be counted by hand."""

import pytest
import torch
import torch.nn.functional as F

from sqrtvocab import make_head
from sqrtvocab.measure.roofline import LIMITS, START, estimate

N, D, V = 4096, 64, 5000


def test_a_product_by_hand():
    def make():
        rows, weight = torch.empty(N, D, dtype=torch.float16), torch.empty(V, D, dtype=torch.float16)
        return lambda: F.linear(rows, weight).view(-1)  # to look at it otherwise costs nothing

    found = estimate(make, "t4")
    moved = 2 * (N * D + V * D + N * V)
    assert found[:3] == (1, moved, 2 * N * D * V)
    assert found.seconds == pytest.approx(
        max(moved / LIMITS["t4"].bandwidth, 2 * N * D * V / LIMITS["t4"].half)
    )


def test_small_kernels_take_the_time_to_start_them():
    def make():
        one = torch.empty(1)
        return lambda: [one + 1 for _ in range(10)]

    assert estimate(make, "h100").seconds == 10 * START


@pytest.mark.parametrize(("card", "kernels"), [("t4", "bmm"), ("h100", "_grouped_mm")])
def test_each_card_takes_its_own_kernel(card, kernels):
    def make(head):
        hidden, target = torch.empty(N, D, requires_grad=True), torch.zeros(N, dtype=torch.int64)
        return lambda: head(hidden, target).loss.backward()

    tiles = estimate(lambda: make(make_head("grouped-linear", D, V, kernel="tiles")), card)
    chosen = estimate(lambda: make(make_head("grouped-linear", D, V)), card)
    assert (chosen == tiles) == (kernels == "bmm")


def test_all_of_the_adaptive_heads_work_is_counted():
    def make(name):
        head = make_head(name, D, V)
        hidden, target = torch.empty(N, D, requires_grad=True), torch.zeros(N, dtype=torch.int64)
        return lambda: head(hidden, target).loss.backward()

    adaptive, flat = (estimate(lambda name=name: make(name), "t4") for name in ("adaptive", "flat"))
    assert adaptive.bytes > flat.bytes / 2
    assert 0 < adaptive.operations < flat.operations
