"""Simulated memory is the memory that the computation really takes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sqrtvocab.measure import allocated_by
from sqrtvocab.measure.simulate import simulated_peak


def make_step():
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1000))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs, target = torch.zeros(256, 64), torch.zeros(256, dtype=torch.int64)

    def step():
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_peak_of_a_training_step():
    def two_steps():
        step = make_step()
        step()
        step()

    real = allocated_by(two_steps).peak
    assert simulated_peak(make_step) == pytest.approx(real, rel=0.1)


def test_exact_where_it_can_be():
    def make():
        kept = torch.zeros(1000)  # 4,000 bytes that stay

        def step():
            double = kept + kept  # 4,000 that go
            view = double.view(10, 100)  # none
            return (view * 2).sum()  # 4,000 and 4 (the largest sum is that of all)

        return step

    assert simulated_peak(make) == 12_004


def test_what_would_not_fit():
    terabyte = 2**40

    def make():
        return lambda: torch.empty(terabyte // 4) + 1

    assert simulated_peak(make) == 2 * terabyte
