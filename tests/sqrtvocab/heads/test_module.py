"""Heads as citizens of torch: compile, state dict, deepcopy, DDP, fake tensors; priors; bad input."""

import copy
import io

import pytest
import torch
from ranks import run_ranks
from torch._subclasses import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from sqrtvocab import HEADS, Partition, make_head
from sqrtvocab.heads.segments import segment_mm, segment_nll

V, D = 103, 8


def batch(n=12, v=V, d=D):
    target = torch.randint(v, (n,))
    target[0] = -100
    return torch.randn(n, d, requires_grad=True), target


# ---- compile ----


def check_compiled(head, backend):
    torch.compiler.reset()
    hidden, target = batch()
    want = head(hidden, target, label_smoothing=0.1)
    grads = torch.autograd.grad(want.loss, [hidden, *head.parameters()])
    out = torch.compile(head, fullgraph=True, backend=backend)(hidden, target, label_smoothing=0.1)
    torch.testing.assert_close(tuple(out), tuple(want), atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad(out.loss, [hidden, *head.parameters()])
    torch.testing.assert_close(got, grads, atol=1e-5, rtol=1e-5)


# Every head is compiled with inductor, which takes longer.
@pytest.mark.parametrize(
    "make", ["flat-chunked", "grouped-both", "grouped-linear", "adaptive"], indirect=True
)
def test_training_is_one_graph(make):
    check_compiled(make(D, V, Partition.random(V)), "aot_eager")


@pytest.mark.slow
def test_training_compiles_with_inductor(make, device):
    check_compiled(make(D, V, Partition.random(V)), "inductor")


def test_a_compiled_head_still_refuses_targets_out_of_range():
    torch.compiler.reset()
    compiled = torch.compile(make_head("grouped", D, V), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"target must lie in \[0, 103\)"):
        compiled(torch.randn(2, D), torch.tensor([1, V]))


def test_segment_operators_are_well_formed():
    """torch's own checks of schema, fake shapes and autograd registration."""
    rows = torch.randn(7, 4, requires_grad=True)
    weight = torch.randn(3, 5, 4, requires_grad=True)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    torch.library.opcheck(segment_mm, (rows, weight, ends))
    matrix, bias = torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
    target = torch.randint(5, (7,))
    torch.library.opcheck(segment_nll, (rows, matrix, bias, target, ends, 2, 0.1, 0.2))


# ---- state ----


def test_state_dict_round_trip_includes_the_partition(make, randomise):
    saved = randomise(make(D, V, Partition.random(V, seed=1)))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded = make(D, V)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    hidden, target = batch()
    torch.testing.assert_close(loaded(hidden, target).loss, saved(hidden, target).loss)
    assert torch.equal(loaded.predict(hidden), saved.predict(hidden))


def test_a_checkpoint_of_another_grouping_is_refused():
    with pytest.raises(ValueError, match=r"of a head with 10 groups .* this one has 5"):
        make_head("grouped", D, V, num_groups=5).load_state_dict(make_head("grouped", D, V).state_dict())


def test_a_checkpoint_of_other_classes_is_refused(make):
    """Also where all tables have the same shapes: 10 and 11 classes in 3 groups."""
    file = io.BytesIO()
    torch.save(torch.nn.ModuleList([make(D, 10, Partition(10, 3))]).state_dict(), file)
    file.seek(0)
    model = torch.nn.ModuleList([make(D, 11, Partition(11, 3))])
    with pytest.raises(ValueError, match="the state dict is of a head over 10 classes, this one has 11"):
        model.load_state_dict(torch.load(file, weights_only=True))


def test_deepcopy(make):
    head = make(D, V, Partition.random(V))
    copied = copy.deepcopy(head)
    hidden, target = batch()
    torch.testing.assert_close(copied(hidden, target).loss, head(hidden, target).loss)
    with torch.no_grad():
        next(copied.parameters()).add_(1.0)
    assert not torch.equal(next(copied.parameters()), next(head.parameters()))


@pytest.mark.parametrize("name", ["flat", "grouped-linear"])
def test_a_tied_head_trains_the_embedding(name):
    embedding = torch.nn.Embedding(V, D)
    head = make_head(name, D, V, weight=embedding.weight)
    model = torch.nn.ModuleDict({"embedding": embedding, "head": head})
    assert head.weight is embedding.weight
    head(*batch()).loss.backward()
    assert bool((embedding.weight.grad != 0).any())
    twin = copy.deepcopy(model)
    assert twin["head"].weight is twin["embedding"].weight


def test_created_on_meta_then_loaded(make, randomise):
    """How large models are loaded: no memory until the weights come."""
    saved = randomise(make(D, V, Partition.random(V)))
    with torch.device("meta"):
        empty = make(D, V, Partition(V))
    empty.load_state_dict(saved.state_dict(), assign=True)
    hidden, target = batch()
    torch.testing.assert_close(empty(hidden, target).loss, saved(hidden, target).loss)


@pytest.mark.filterwarnings("ignore:.*non-meta parameter in the checkpoint")
def test_an_order_from_a_checkpoint_follows_the_parameters(make):
    """A head of the default order on one device loads a checkpoint that lies on another."""
    with torch.device("meta"):
        head = make(D, V)
    head.load_state_dict(make(D, V, Partition.random(V)).state_dict())
    assert {tensor.device.type for tensor in head.state_dict().values()} == {"meta"}


def test_a_head_made_on_meta_can_be_initialised_later(make):
    with torch.device("meta"):
        head = make(D, V)
    head = head.to_empty(device="cpu")
    head.reset_parameters()
    own = {name: p for name, p in head.named_parameters() if not (name == "weight" and head.tied)}
    assert all(bool((p.abs() <= 1.0).all()) for p in own.values())
    assert all(bool((p == 0).all()) for name, p in own.items() if "bias" in name or "shift" in name)


@pytest.mark.parametrize("name", ["flat", "grouped-linear"])
def test_a_head_takes_the_dtype_of_the_weight_it_is_tied_to(name):
    weight = torch.nn.Parameter(torch.randn(V, D, dtype=torch.bfloat16))
    head = make_head(name, D, V, weight=weight)
    assert head.weight is weight
    assert head(torch.randn(3, D, dtype=torch.bfloat16), torch.tensor([0, 1, 2])).loss.isfinite()


def test_double_weights_assigned_to_a_meta_head_are_served():
    with torch.device("meta"):
        head = make_head("grouped-linear", D, V)
    head.load_state_dict(make_head("grouped-linear", D, V).double().state_dict(), assign=True)
    assert head(torch.randn(3, D).double(), torch.tensor([0, 1, 2])).loss.dtype == torch.float64


def test_fake_tensors_run_a_training_step(make):
    """What memory estimates without a GPU rest on."""
    with FakeTensorMode():
        head = make(D, V)
        hidden, target = torch.randn(12, D, requires_grad=True), torch.randint(V, (12,))
        head(hidden, target).loss.backward()
    assert hidden.grad.shape == hidden.shape


# ---- DDP ----


def ddp_worker(rank, folder, cases):
    """Each rank takes half of the batch; rank 0 saves the averaged gradients."""
    for name, options in cases:
        torch.manual_seed(0)
        head = make_head(name, D, V, **options)
        head.give_sparse_gradients()
        parallel = DistributedDataParallel(head)
        hidden, target = torch.randn(10, D), torch.randint(V, (5,)).repeat(2)  # a class on both ranks
        for _ in range(2):  # a parameter left without a gradient would stop the second pass
            parallel.zero_grad()
            half = slice(rank * 5, rank * 5 + 5)
            parallel(hidden[half], target[half]).loss.backward()
        if rank == 0:
            torch.save([p.grad.to_dense() for p in head.parameters()], f"{folder}/{name}.pt")


def test_ddp_averages_gradients(tmp_path):
    cases = [(name, {}) for name in HEADS]
    run_ranks(ddp_worker, tmp_path, 2, cases)
    for name, options in cases:
        torch.manual_seed(0)
        head = make_head(name, D, V, **options)
        head(torch.randn(10, D), torch.randint(V, (5,)).repeat(2)).loss.backward()
        want = [p.grad for p in head.parameters()]
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), want, atol=1e-5, rtol=1e-5)


# ---- prior ----


@pytest.mark.parametrize("ordered", [False, True])
def test_prior_is_exactly_the_smoothed_unigram_distribution(make, ordered):
    head = make(D, V, Partition.random(V) if ordered else None)
    counts = torch.randint(1000, (V,))
    counts[::3] = 0
    if getattr(head, "bias", "") is None:
        with pytest.raises(ValueError, match="bias=True"):
            head.init_prior(counts)
        return
    head.init_prior(counts)
    want = (counts + 1.0) / (counts + 1.0).sum()
    torch.testing.assert_close(head.log_prob(torch.zeros(D)).exp(), want, atol=1e-7, rtol=1e-5)
    head.init_prior(counts.tolist(), smoothing=0.5)
    want = (counts + 0.5) / (counts + 0.5).sum()
    torch.testing.assert_close(head.log_prob(torch.zeros(D)).exp(), want, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    ("counts", "smoothing", "message"),
    [
        (torch.ones(V + 1), 1.0, r"counts must have shape \[103\], got \[104\]"),
        (-torch.ones(V), 2.0, "not negative"),
        (torch.zeros(V), 0.0, "smoothing = 0.0 leaves a class without"),
        (torch.full((V,), torch.nan), 1.0, "finite"),
    ],
)
def test_bad_counts(counts, smoothing, message):
    with pytest.raises(ValueError, match=message):
        make_head("grouped", D, V).init_prior(counts, smoothing)


# ---- bad input ----


@pytest.mark.parametrize("bad", [-1, V, 10**9])
def test_a_target_out_of_range_is_an_index_error_with_the_range(make, device, bad):
    head = make(D, V).to(device)
    head.validate = True
    hidden, target = torch.randn(3, D, device=device), torch.tensor([4, bad, -100], device=device)
    low, high = (bad, 4) if bad < 0 else (0, bad)
    with pytest.raises(IndexError, match=rf"\[0, 103\).* from {low} to {high}"):
        head(hidden, target)


def test_any_ignore_index_may_be_chosen(make):
    head = make(D, V)
    hidden = torch.randn(2, D)
    out = head(hidden, torch.tensor([4, V + 7]), ignore_index=V + 7)
    torch.testing.assert_close(out.loss, head(hidden[:1], torch.tensor([4])).loss)


@pytest.mark.parametrize(
    ("hidden", "target", "options", "error", "message"),
    [
        (
            torch.randn(3, D + 1),
            torch.zeros(3).long(),
            {},
            ValueError,
            r"hidden .* in_features = 8.*\[3, 9\]",
        ),
        (torch.ones(3, D).long(), torch.zeros(3).long(), {}, TypeError, "hidden must be floating point"),
        (torch.randn(3, D), torch.zeros(3), {}, TypeError, "target must hold class indices"),
        (torch.randn(3, D), torch.zeros(4).long(), {}, ValueError, r"target .* \[3\]; got \[4\]"),
        (torch.randn(3, D), torch.zeros(3).long(), {"reduction": "max"}, ValueError, "reduction .* 'max'"),
        (torch.randn(3, D), torch.zeros(3).long(), {"label_smoothing": 2}, ValueError, "label_smoothing"),
    ],
)
def test_bad_input_is_named_in_one_line(make, hidden, target, options, error, message):
    with pytest.raises(error, match=message) as caught:
        make(D, V)(hidden, target, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("group", D, V), {}, ValueError, "'group'; the heads are flat, grouped, grouped-linear, gr"),
        (("flat", D, V), {"num_groups": 3}, TypeError, "'flat' has no option 'num_groups'; .*chunk_size"),
        (("grouped", 0, V), {}, ValueError, "in_features"),
        (("flat", D, 0), {}, ValueError, "num_classes"),
        (("grouped", D, V), {"num_groups": V + 1}, ValueError, "num_groups"),
        (("grouped", D, V), {"partition": Partition(50)}, ValueError, "partition is over 50 classes"),
        (("grouped", D, V), {"partition": 10}, TypeError, "partition must be a Partition, got int"),
        (("grouped", D, V), {"num_groups": 10.0}, TypeError, "num_groups must be an integer"),
        (("flat", 8.0, V), {}, TypeError, "in_features must be an integer"),
        (("flat", D, "100"), {}, TypeError, "num_classes must be an integer"),
        (
            ("flat", D, V),
            {"weight": torch.ones(V, D)},
            TypeError,
            "weight must be an nn.Parameter .*got Tensor",
        ),
        (("flat", D, V), {"weight": torch.nn.Embedding(V, D)}, TypeError, "embedding.weight, got Embedding"),
        (("grouped", D, V), {"partition": Partition(V, 9), "num_groups": 8}, ValueError, "num_groups is 8"),
        (("grouped", D, V), {"modulation": "shift"}, ValueError, "modulation must be one of scale-shift"),
        (("grouped-linear", D, V), {"kernel": "triton"}, ValueError, "kernel"),
        (("grouped-low-rank", D, V), {"rank": 9}, ValueError, "rank is 9, but in_features = 8"),
        (("grouped-low-rank", D, V), {"rank": 0}, ValueError, "rank"),
        (("grouped-linear", D, V), {"weight": torch.nn.Parameter(torch.ones(2, D))}, ValueError, "weight"),
        (("flat", D, V), {"chunk_size": 0}, ValueError, "chunk_size"),
        (("adaptive", D, V), {"cutoffs": [50, 20]}, ValueError, "cutoffs must increase"),
        (("adaptive", D, V), {"cutoffs": [V]}, ValueError, "cutoffs"),
        (("adaptive", D, V), {"div_value": 0}, ValueError, "div_value"),
        (("factored", D, 12), {"radices": (3, 5)}, ValueError, r"\(3, 5\) make 15 classes, but .* is 12"),
        (("factored", D, 1), {"radices": ()}, ValueError, "radices must name at least one attribute"),
        (("factored", D, 12), {"radices": (12, 0)}, ValueError, "each of radices must be at least 1, got 0"),
        (("factored", D, 12), {"radices": (12, 1.0)}, TypeError, "each of radices must be an integer"),
    ],
)
def test_bad_construction_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        make_head(*arguments, **options)


def test_repr_tells_what_it_is(make):
    assert f"{D} -> {V} classes" in repr(make(D, V))
