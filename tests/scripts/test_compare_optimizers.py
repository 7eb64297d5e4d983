"""The comparison under SGD: its groupings, its record, its page; what it trains is what it says."""

import csv

import pytest
import torch

from lm.text.sources import built_in
from scripts.common.words import GROUPINGS, Recipe, read_words, train_words
from sqrtvocab import make_head

COUNTS = (torch.arange(1, 26).flip(0) ** 3)[torch.randperm(25, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("name", GROUPINGS)
def test_groupings_are_partitions(name):
    partition = GROUPINGS[name](COUNTS)
    group, member = partition.split(torch.arange(25))
    assert len(set(zip(group.tolist(), member.tolist(), strict=True))) == 25
    assert set(group.tolist()) == set(range(partition.num_groups))


def test_frequent_words_are_dealt_or_share_the_mass():
    mass = {
        name: torch.zeros(GROUPINGS[name](COUNTS).num_groups).index_add(
            0, GROUPINGS[name](COUNTS).split(torch.arange(25))[0], COUNTS / COUNTS.sum()
        )
        for name in GROUPINGS
    }
    assert mass["dealt"].max() < mass["frequency"].max() / 1.5
    assert mass["equal mass"].max() <= 1 / 5 + COUNTS.max() / COUNTS.sum()


def test_words_are_those_of_the_text():
    words = read_words(built_in(20), 50, 400, 100)
    assert (len(words.train), len(words.validation)) == (400, 100)
    assert words.counts[0] == words.counts[:49].max()  # the most frequent word is 0
    assert words.counts.sum() == 400


def test_the_group_layer_moves_by_its_own_rate_and_nothing_else_does():
    words, moved = read_words(built_in(20), 50, 80, 60), {}
    for slower in (None, 1.0):
        torch.manual_seed(0)
        head = make_head("grouped-linear", 6, 50, partition=GROUPINGS["frequency"](words.counts))
        before = {name: parameter.detach().clone() for name, parameter in head.named_parameters()}
        train_words(words, head, Recipe("sgd", 0.5, slower, 6, 1, 2, 60), 0)  # one step
        moved[slower] = {
            name: float((p.detach() - before[name]).norm()) for name, p in head.named_parameters()
        }
    slow = min(group["lr"] for group in head.parameter_groups(0.5, words.counts)) / 0.5
    assert slow < 0.5
    assert moved[None]["group.weight"] == pytest.approx(slow * moved[1.0]["group.weight"], rel=1e-4)
    assert moved[None]["weight"] == pytest.approx(moved[1.0]["weight"])


def test_the_script(call, tmp_path):
    flags = ("--data", "stories:60", "--words", 2000, "--valid-words", 400, "--vocab", 100, "--seeds", 0)
    result = call("compare_optimizers", *flags, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    result = call("compare_optimizers", *flags, "--out", tmp_path, "--contenders", "flat", "random")
    assert result.returncode == 0, result.stderr
    assert "flat" not in result.stderr  # it is in the record
    with (tmp_path / "optimizers.csv").open() as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"flat", "grouped-linear", "random"}
    assert float(rows["flat"]["slower"]) == 1 > float(rows["grouped-linear"]["slower"])
    assert float(rows["flat"]["curvature"]) < float(rows["grouped-linear"]["curvature"])
    page = (tmp_path / "optimizers.md").read_text()
    assert f"| `flat` | 20 | 1 | {float(rows['flat']['loss']):.3f} |" in page
    result = call("compare_optimizers", *flags, "--contenders", "fat", "--lr", 0)
    assert result.returncode == 2
    assert result.stderr == (
        "compare_optimizers: --lr must be positive, got 0; --contenders: no 'fat'; choose of flat, "
        "grouped-linear, one-rate, tenth, third, random, dealt, equal-mass, grouped, low-rank\n"
    )
