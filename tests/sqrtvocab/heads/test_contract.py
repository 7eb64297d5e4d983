"""What a head tells its callers: its options, its guesses, its cost, how it starts; nobody asks more."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sqrtvocab import HEADS, Partition, make_head
from sqrtvocab.heads import head_class

ROOT = Path(__file__).parents[3]
D, V, N = 8, 100, 23


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(N, D)


# ---- options ----


def test_a_head_takes_what_it_needs_of_what_is_offered():
    order = torch.randperm(12)
    weight = nn.Parameter(torch.randn(12, D))
    partition = Partition(12, 3, order)
    offered = {"partition": partition, "order": order, "weight": weight, "radices": (3, 4), "rank": None}
    heads = {name: make_head(name, D, 12, offered) for name in HEADS}
    for name, head in heads.items():
        assert (head.partition is not None) == head.has_groups == head_class(name).takes("partition")
        if head.has_groups:
            assert head.partition.num_groups == 3
            assert torch.equal(head.partition.order, order)
        if head.takes("weight"):
            assert head.weight is weight
    assert torch.equal(heads["adaptive"].ranking.order, order)
    assert heads["factored"].radices == (3, 4)
    assert heads["grouped-low-rank"].rank == D  # None is not offered


def test_options_that_a_head_lacks_are_refused():
    with pytest.raises(TypeError, match="head 'flat' has no option 'rank'; its options are bias, chunk_size"):
        make_head("flat", D, V, rank=3)
    with pytest.raises(ValueError, match="no head is called 'fat'; the heads are flat, grouped,"):
        make_head("fat", D, V)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_made_on_a_device_in_a_dtype(device, dtype):
    if device == "mps" and dtype == torch.float64:
        pytest.skip("mps has no float64")
    order = torch.randperm(V)
    for name in HEADS:
        offered = {"partition": Partition(V, 9, order), "order": order}
        torch.manual_seed(1)
        head = make_head(name, D, V, offered, device=device, dtype=dtype).eval()
        assert {(p.device.type, p.dtype) for p in head.parameters()} == {(device, dtype)}
        assert {buffer.device.type for buffer in head.buffers()} <= {device}
        hidden = torch.randn(4, D, device=device, dtype=dtype)
        assert head(hidden, torch.tensor([0, 1, 2, V - 1], device=device)).loss.isfinite()
        skeleton = make_head(name, D, V, offered, device="meta", dtype=dtype)
        assert all(tensor.is_meta for tensor in skeleton.state_dict().values())
        assert offered["partition"].order.device.type == "cpu"


# ---- reports ----


def test_guesses_are_those_of_the_dense_distribution(make, rows, device):
    head, rows = make(D, V).to(device), rows.to(device)
    target = torch.randint(V, (N,), device=device)
    other = Partition.random(V, 7, seed=3).to(device)
    log_prob = head.log_prob(rows)
    for partition in filter(None, (head.partition, other)):
        group_of = partition.split(torch.arange(V, device=device))[0]  # [V]
        guesses = head.guesses(rows, target, partition, k=3)
        assert torch.equal(guesses.classes, log_prob.topk(3).indices)
        torch.testing.assert_close(guesses.log_probs, log_prob.topk(3).values)
        rivals = log_prob.masked_fill(group_of != group_of[target].unsqueeze(1), -torch.inf)
        assert torch.equal(guesses.in_group, rivals.argmax(-1))
        if partition is head.partition:
            mass = torch.zeros(N, partition.num_groups, device=device)
            expected = mass.index_add(1, group_of, log_prob.exp()).argmax(-1)
            assert torch.equal(head.group_log_prob(rows).argmax(-1), expected)
        else:  # the group of the best class
            expected = group_of[log_prob.argmax(-1)]
        assert torch.equal(guesses.group, expected)


def test_guesses_keep_the_shape(make, rows):
    head = make(D, V)
    guesses = head.guesses(rows[:6].view(2, 3, D), torch.zeros(2, 3, dtype=torch.long), Partition(V), k=2)
    assert [list(part.shape) for part in guesses] == [[2, 3, 2], [2, 3], [2, 3], [2, 3, 2]]


def test_guesses_need_to_know_what_a_group_is(rows):
    head, target = make_head("flat", D, V), torch.zeros(N, dtype=torch.long)
    with pytest.raises(ValueError, match="needs a partition"):
        head.guesses(rows, target)
    with pytest.raises(IndexError, match="observed values from 0 to 100"):
        head.guesses(rows, torch.full((N,), V).index_fill(0, torch.tensor([0]), 0), Partition(V))
    with pytest.raises(ValueError, match="FlatHead predicts no groups"):
        head.group_log_prob(rows)


def test_group_probabilities_are_sums_over_the_members(make_grouped, rows):
    head = make_grouped(D, V)
    group_of = head.partition.split(torch.arange(V))[0]
    sums = torch.zeros(N, head.partition.num_groups).index_add(1, group_of, head.log_prob(rows).exp())
    torch.testing.assert_close(head.group_log_prob(rows).exp(), sums)


# ---- learning rates ----


def test_rates_for_sgd_follow_how_frequent_groups_are(make_grouped):
    """A row moves the score of its group, on average, as far as a flat head moves that of its class."""
    target = (torch.rand(2000) ** 3 * V).long()
    counts = torch.bincount(target, minlength=V)
    head = make_grouped(D, V, Partition.by_frequency(counts, 5))
    rates = {id(p): group["lr"] for group in head.parameter_groups(2.0, counts) for p in group["params"]}
    assert rates.keys() == {id(p) for p in head.parameters()}
    slower = {id(p) for p in head.group.parameters()}
    assert all(
        rate == (2.0 if key not in slower else rates[id(head.group.bias)]) for key, rate in rates.items()
    )
    of_group = [int(g) for g in head.partition.split(target)[0]]
    mean_of_classes = sum(int(counts[t]) for t in target) / 2000
    mean_of_groups = sum(of_group.count(g) for g in of_group) / 2000
    assert rates[id(head.group.bias)] == pytest.approx(2.0 * mean_of_classes / mean_of_groups, rel=1e-4)


def test_rates_for_sgd_need_a_class_that_occurs(make_grouped):
    with pytest.raises(ValueError, match="counts are all zero"):
        make_grouped(D, V).parameter_groups(0.5, torch.zeros(V))


def test_rates_for_sgd_where_nothing_is_to_be_scaled(make):
    head = make(D, V)
    only_one = torch.zeros(V).index_fill(0, torch.tensor(3), 7.0)
    assert {group["lr"] for group in head.parameter_groups(0.5, only_one)} == {0.5}


# ---- costs ----


@pytest.mark.parametrize("name", HEADS)
def test_cost_is_what_the_products_of_a_step_take(name, rows):
    """Counted from the parameters that a row meets, by hand."""
    counts = torch.arange(V, 0, -1)
    head = make_head(name, D, V, {"radices": (4, 25), "partition": Partition(V, 10)})
    share = counts / counts.sum()
    by_hand = {
        "flat": D * V,
        "grouped": D * (10 + 10),
        "grouped-linear": D * (10 + 10),
        "grouped-low-rank": D * (10 + 10),
        "factored": D * (4 + 25),
        "sampled": D * V,  # all of so few classes are drawn
        "mach": D * 16 * 40,
        # the first softmax has 4 classes and 2 clusters; projections to 2 and 1 (at least) features
        "prototype": D * 64,  # a batch of 64 rows
        "adaptive": D * 6 + D * 2 + 2 * 16 * share[4:20].sum() + D * 1 + 1 * 80 * share[20:].sum(),
    }
    cost = head.cost(counts)
    assert cost.multiply_adds == pytest.approx(float(by_hand[name]))
    assert cost.fixed == (D * V * D if name == "grouped-low-rank" else 0)
    assert head.describe()
    assert "\n" not in head.describe()


# ---- starting from a layer that exists ----


@pytest.mark.parametrize("bias", [True, False])
def test_flat_computes_what_the_old_layer_did(rows, bias):
    layer, head = nn.Linear(D, V, bias=bias), make_head("flat", D, V)
    nn.init.normal_(head.bias)
    assert head.init_from_linear(layer.weight, layer.bias)
    torch.testing.assert_close(head.log_prob(rows), F.log_softmax(layer(rows), -1))


@pytest.mark.parametrize("centroids", [1, 4, 100])
@pytest.mark.parametrize("tied", [True, False])
def test_grouped_linear_keeps_the_odds_within_groups(rows, tied, centroids):
    layer = nn.Linear(D, V)
    partition = Partition.random(V, 9, seed=2)
    weight = nn.Parameter(torch.empty(V, D)) if tied else None
    head = make_head("grouped-linear", D, V, partition=partition, weight=weight, centroids=centroids)
    assert head.init_from_linear(layer.weight, layer.bias, rows)
    old, new = F.log_softmax(layer(rows), -1), head.log_prob(rows)
    group_of = partition.split(torch.arange(V))[0]
    for group in range(9):
        members = (group_of == group).nonzero().squeeze(1)
        torch.testing.assert_close(new[:, members].log_softmax(-1), old[:, members].log_softmax(-1))
    gap = F.kl_div(new, old, log_target=True, reduction="batchmean")
    assert gap < 0.01  # the groups are fitted, not exact


def test_a_centroid_for_every_member_is_exact():
    """Expanded around any point: the log-sum of the members' own scores is the group's score."""
    layer = nn.Linear(D, V)
    head = make_head("grouped-linear", D, V, centroids=Partition(V).group_size)
    assert head.init_from_linear(layer.weight, layer.bias)
    hidden = 5 * torch.randn(30, D)
    torch.testing.assert_close(head.log_prob(hidden), F.log_softmax(layer(hidden), -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"centroids": 0}, "centroids must be .*, got 0"),
        ({"centroids": 1.5}, "centroids must be an integer"),
        (
            {"centroids": 2, "partition": Partition.from_groups([0] * 30 + [1] * (V - 30))},
            "one centroid each",
        ),
    ],
)
def test_bad_centroids(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_head("grouped-linear", D, V, **options)


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_cannot_use_a_layer_say_so(name, rows):
    layer = nn.Linear(D, V)
    head = make_head(name, D, V, {"radices": (4, 25)})
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    assert head.init_from_linear(layer.weight, layer.bias, rows) == head.starts_from_linear
    is_same = all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())
    assert is_same != head.starts_from_linear


def test_a_flat_head_without_bias_refuses_one():
    layer = nn.Linear(D, V)
    with pytest.raises(ValueError, match="make the flat head with bias=True"):
        make_head("flat", D, V, bias=False).init_from_linear(layer.weight, layer.bias)


# ---- older state dicts ----


def test_adaptive_loads_the_names_of_older_versions(rows):
    order = torch.randperm(V)
    head = make_head("adaptive", D, V, order=order)
    old = {name.replace("ranking.", "partition."): tensor for name, tensor in head.state_dict().items()}
    assert "partition.order" in old
    again = make_head("adaptive", D, V)
    again.load_state_dict(old)
    torch.testing.assert_close(again.log_prob(rows), head.log_prob(rows))


# ---- what the rest of the project may know ----


def test_names_cost_no_torch():
    code = "import sys; from sqrtvocab import HEADS; assert 'flat' in HEADS; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


BLOCKED = """
import sys
import torch
from importlib.metadata import requires
from re import match

torch_needs = {match(r"[\\w.-]+", need)[0].lower() for need in requires("torch")} | {"torch", "numpy"}
ours = {match(r"[\\w.-]+", need)[0].lower() for need in requires("sqrtvocab") if "extra ==" not in need}
names = {"pillow": "PIL", "scikit-learn": "sklearn"}  # those imported under another name
for need in ours - torch_needs:
    sys.modules[names.get(need, need.replace("-", "_"))] = None  # importing it now raises
assert sys.modules["transformers"] is sys.modules["PIL"] is sys.modules["tyro"] is None

import sqrtvocab
for name in sqrtvocab.HEADS:
    head = sqrtvocab.make_head(name, 8, 100)
    head(torch.randn(10, 8), torch.arange(5).repeat(2)).loss.backward()
    torch.optim.SGD(head.parameters(), 0.1).step()
    head.topk(torch.randn(5, 8), 3), head.sample(torch.randn(5, 8)), head.init_prior(torch.ones(100))
"""


def test_a_head_trains_with_torch_and_numpy_alone():
    subprocess.run([sys.executable, "-c", BLOCKED], check=True, cwd=ROOT)


def _source_files() -> list[Path]:
    return [path for package in ("classifier", "lm", "scripts") for path in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("path", _source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_asks_for_the_class_or_the_name_of_a_head(path):
    """A caller that does shows that the contract lacks a word."""
    classes = {kind.__name__ for kind in HEADS.values()} | {"TwoLevelHead", "PerGroupHead"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            asked = {getattr(name, "id", getattr(name, "attr", "")) for name in ast.walk(node.args[1])}
            assert not asked & classes, f"{where} asks for the class of a head"
        constants = {
            leaf.value
            for operand in ([node.left, *node.comparators] if isinstance(node, ast.Compare) else [])
            for leaf in ast.walk(operand)
            if isinstance(leaf, ast.Constant)
        }
        assert not {c for c in constants if isinstance(c, str)} & set(HEADS), (
            f"{where} compares a head's name"
        )
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            assert "grouped" not in values, f"{where} compares a head's name"
