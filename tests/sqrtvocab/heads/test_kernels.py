"""The kernels of heads with a matrix for each group: which is chosen where, and that tiles are the loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from sqrtvocab import make_head
from sqrtvocab.heads.tiles import cut_into_tiles, tile_size

D, V = 8, 300


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
