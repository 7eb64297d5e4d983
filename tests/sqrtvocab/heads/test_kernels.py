"""The kernels of heads with a matrix for each group: which is chosen where, and that tiles are the loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sqrtvocab import make_head
from sqrtvocab.heads import flat, grouped, place
from sqrtvocab.heads.tiles import cut_into_tiles, tile_size

D, V = 8, 300
aten = torch.ops.aten


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_kernel_on_a_gpu(capability, dtype, monkeypatch):
    """torch's grouped product is one kernel in bfloat16 on 9.x and 10.x only; elsewhere nothing must wait."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    with FakeTensorMode():  # CUDA tensors without a GPU
        few = make_head("grouped-linear", D, V, device="cuda", dtype=dtype)
        many = make_head("grouped-linear", D, 5000, num_groups=1024, device="cuda", dtype=dtype)
    native = capability[0] in (9, 10) and dtype == torch.bfloat16
    assert few.kernels.get(dtype, few.other_kernel) == ("grouped_mm" if native else "tiles")
    assert many.kernels.get(dtype, many.other_kernel) == "tiles"


def test_the_kernel_elsewhere():
    cpu = make_head("grouped-linear", D, V)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert cpu.kernels[dtype] == "grouped_mm"
    assert (torch.float64 in cpu.kernels, cpu.other_kernel) == (False, "loop")
    for kernel in ("loop", "tiles"):
        chosen = make_head("grouped-linear", D, V, kernel=kernel)
        assert (chosen.kernels, chosen.other_kernel) == ({}, kernel)


@given(
    groups=st.lists(st.integers(0, 6), max_size=60).map(sorted),
    size=st.sampled_from([1, 2, 16]),
)
def test_every_row_is_in_a_tile_of_its_group(groups, size):
    groups = torch.tensor(groups, dtype=torch.int64)
    tiles = cut_into_tiles(groups, 7, size)
    assert tiles.row.shape == ((len(groups) + min(7, len(groups)) * (size - 1)) // size, size)
    assert torch.equal(tiles.row.flatten()[tiles.place], torch.arange(len(groups)))
    assert torch.equal(tiles.group.repeat_interleave(size)[tiles.place], groups)


@given(rows=st.integers(0, 100_000), groups=st.integers(1, 5000))
def test_tile_sizes(rows, groups):
    size = tile_size(rows, groups)
    assert size in (16, 32, 64, 128)
    assert size == 16 or size * groups <= rows


@pytest.mark.parametrize("name", ["grouped-linear", "grouped-low-rank"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_tiles_are_the_loop(name, dtype):
    loop = make_head(name, D, V, kernel="loop", dtype=dtype)
    tiles = make_head(name, D, V, kernel="tiles", dtype=dtype)
    tiles.load_state_dict(loop.state_dict())
    target = (torch.rand(200) ** 4 * V).long()  # uneven, as words are
    results = []
    for head in (loop, tiles):
        hidden = torch.randn(200, D, dtype=dtype, generator=torch.Generator().manual_seed(5)).requires_grad_()
        loss = head(hidden, target, label_smoothing=0.1).loss
        loss.backward()
        results.append([loss, hidden.grad, *(parameter.grad for parameter in head.parameters())])
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_tiles_differentiate_forwards():
    """Which the loop's operators cannot."""
    head, target = make_head("grouped-linear", D, V, kernel="tiles").double(), torch.randint(V, (20,))
    hidden, tangent = torch.randn(20, D).double(), torch.randn(20, D).double()
    loss, slope = torch.func.jvp(lambda h: head(h, target).loss, (hidden,), (tangent,))
    eps = 1e-6
    ahead = head(hidden + eps * tangent, target).loss
    torch.testing.assert_close(slope, (ahead - loss) / eps, atol=1e-4, rtol=1e-4)


def test_a_loop_refuses_to_differentiate_forwards():
    """Rather than give a slope that lacks the members' part."""
    for name, options in {"grouped-linear": {"kernel": "loop"}, "adaptive": {}}.items():
        head, target = make_head(name, D, V, **options), torch.randint(V, (20,))
        with pytest.raises(NotImplementedError, match="cannot be differentiated in forward mode"):
            torch.func.jvp(lambda h, head=head, y=target: head(h, y).loss, *[(torch.randn(20, D),)] * 2)


def test_tiles_serve_any_number_of_rows_in_one_graph():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    head = make_head("grouped-linear", D, V, kernel="tiles")
    compiled = torch.compile(head, backend=backend, fullgraph=True, dynamic=True)
    for count in (33, 57, 81):
        hidden, target = torch.randn(count, D), torch.randint(V, (count,))
        torch.testing.assert_close(compiled(hidden, target).loss, head(hidden, target).loss)
    assert len(graphs) == 1


@pytest.fixture
def on_a_gpu(monkeypatch):
    """CPU tensors count as a GPU's."""
    monkeypatch.setattr(place, "is_cpu", lambda device: False)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flat", {}),
        ("flat", {"bias": False}),
        ("flat", {"chunk_size": 7}),
        ("grouped", {}),
        ("grouped", {"modulation": "film"}),
        ("grouped", {"modulation": "both"}),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padded_columns_change_nothing(name, options, smoothing, randomise, on_a_gpu):
    """In half precision on a GPU; here the columns are added in float64, where equal means equal."""
    head = randomise(make_head(name, D, 103, **options)).double()  # 103 classes, 11 in a group
    hidden, target = torch.randn(20, D).double(), torch.randint(103, (20,))
    results = []
    for spare in (lambda columns, rows: 0, lambda columns, rows: -columns % 8):
        with pytest.MonkeyPatch.context() as patch:
            for module in (flat, grouped):
                patch.setattr(module, "spare_columns", spare)
            rows = hidden.clone().requires_grad_()
            loss = head(rows, target, label_smoothing=smoothing).loss
            gradients = torch.autograd.grad(loss, [rows, *head.parameters()])
            decoded = [head.log_prob(hidden), *head.topk(hidden, 5)]
        results.append([loss.detach(), *gradients, *decoded])
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flat", {}),
        ("flat", {"chunk_size": 64}),
        ("grouped", {"num_groups": 32}),
        ("grouped-linear", {"num_groups": 32}),
    ],
)
def test_products_in_half_precision_are_aligned_on_a_gpu(name, options, autocast, on_a_gpu):
    """Whoever reads 16 bytes at a time wants every row to begin at a multiple of them."""
    head = make_head(name, 16, 1003, dtype=torch.float32 if autocast else torch.bfloat16, **options)
    hidden = torch.randn(64, 16, dtype=next(head.parameters()).dtype, requires_grad=True)
    with Products() as products, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        head(hidden, torch.randint(1003, (64,))).loss.backward()
    assert products.shapes
    assert {dtype for dtype, _ in products.shapes} == {torch.bfloat16}
    assert [shape for _, shape in products.shapes if any(size % 8 for size in shape[-2:])] == []


class Products(TorchDispatchMode):
    """Notes the type and shape of every factor and result of a matrix product."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (aten.mm, aten.addmm, aten.bmm) or "linear_cross_entropy" in str(func):
            tensors = (x for x in (*args, out) if isinstance(x, torch.Tensor))
            self.shapes += [(x.dtype, tuple(x.shape)) for x in tensors if x.dim() > 1]
        return out


class Operands(TorchDispatchMode):
    """Notes what torch's grouped product and batched products are given, in both passes."""

    def __init__(self):
        super().__init__()
        self.grouped, self.batched = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is aten._grouped_mm:
            self.grouped.append((*args[:2], (kwargs or {}).get("offs", args[2] if len(args) > 2 else None)))
        if func.overloadpacket is aten.bmm:
            self.batched.append(args)
        return func(*args, **(kwargs or {}))


def is_aligned(matrix):
    """One of the last two strides is 1, the others are whole units of 16 bytes, and so is the beginning."""
    *outer, rows, columns = matrix.stride()
    if columns != 1 and rows != 1:
        return False
    steps = [*outer, rows if columns == 1 else columns, matrix.storage_offset()]
    return all(step * matrix.element_size() % 16 == 0 for step in steps)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("width", [16, 13])
def test_the_grouped_product_gets_what_cuda_asks_for(width, tied):
    """As torch's CUDA code checks it: aligned strides, int32 offsets in one piece, in both passes."""
    weight = torch.nn.Parameter(torch.randn(V, width, dtype=torch.bfloat16)) if tied else None
    head = make_head("grouped-linear", width, V, weight=weight, kernel="grouped_mm", dtype=torch.bfloat16)
    hidden = torch.randn(50, width, dtype=torch.bfloat16, requires_grad=True)
    with Operands() as seen:
        head(hidden, torch.randint(V, (50,)), label_smoothing=0.1).loss.backward()
    assert len(seen.grouped) == 3  # the product, and the gradients of both factors
    for *factors, ends in seen.grouped:
        assert all(is_aligned(factor) for factor in factors), [factor.stride() for factor in factors]
        assert ends.dtype == torch.int32
        assert ends.is_contiguous()
        assert len(ends) == head.partition.num_groups < 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiles_get_what_tensor_cores_ask_for(dtype):
    head = make_head("grouped-linear", 16, V, kernel="tiles", dtype=dtype)
    hidden = torch.randn(50, 16, dtype=dtype, requires_grad=True)
    with Operands() as seen:
        head(hidden, torch.randint(V, (50,))).loss.backward()
    assert len(seen.batched) == 3
    assert all(is_aligned(factor) for factors in seen.batched for factor in factors)
