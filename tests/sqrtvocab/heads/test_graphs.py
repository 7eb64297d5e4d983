"""Decoding as a graph: compiled, exported, in ONNX; what it computes is what eager decoding computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sqrtvocab import Head, Partition
from sqrtvocab.heads.sampling import draw

D, V = 8, 103
DRAWS = {
    "plain": {},
    "cool": {"temperature": 0.5},
    "top-k": {"top_k": 5},
    "nucleus": {"top_p": 0.9, "min_p": 0.01},
}


class Decoder(nn.Module):
    """All that decodes a head, as a module's forward pass, for modules are what is exported."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.head.log_prob(hidden), self.head.predict(hidden), *self.head.topk(hidden, 5)


@pytest.fixture
def decoder(make_rarely, randomise):
    return Decoder(randomise(make_rarely(D, V, Partition.random(V)))).eval()


def test_decoding_is_one_graph_for_every_batch(decoder):
    torch.compiler.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(decoder, fullgraph=True, backend=count, dynamic=True)
    for n in (2, 5, 9):
        hidden = torch.randn(n, D)
        torch.testing.assert_close(compiled(hidden), decoder(hidden))
    assert len(graphs) == 1


def test_decoding_exports_with_any_batch(decoder):
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(decoder, (torch.randn(3, D),), dynamic_shapes=({0: batch},))
    for n in (1, 3, 200):
        hidden = torch.randn(n, D)
        torch.testing.assert_close(program.module()(hidden), decoder(hidden))


def test_decoding_runs_in_onnxruntime(decoder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "head.onnx"
    batch = torch.export.Dim("batch", min=1)
    example = (torch.randn(3, D),)
    program = torch.onnx.export(decoder, example, dynamic_shapes=({0: batch},), dynamo=True, verbose=False)
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (entry.name for entry in session.get_inputs())
    for n in (1, 3, 200):
        hidden = torch.randn(n, D)
        got = [torch.from_numpy(array) for array in session.run(None, {name: hidden.numpy()})]
        torch.testing.assert_close(got, list(decoder(hidden)))


@pytest.mark.slow
def test_decoding_compiles_with_inductor(decoder):
    torch.compiler.reset()
    hidden = torch.randn(6, D)
    torch.testing.assert_close(torch.compile(decoder, fullgraph=True)(hidden), decoder(hidden))


@pytest.mark.parametrize("options", DRAWS.values(), ids=DRAWS)
def test_drawing_is_one_graph_and_draws_from_the_distribution(make_rarely, randomise, options):
    torch.compiler.reset()
    torch.manual_seed(0)
    head = randomise(make_rarely(D, 12, Partition.random(12)))
    hidden = torch.randn(1, D) / 4
    compiled = torch.compile(head.sample, fullgraph=True, backend="aot_eager")
    rows = hidden.expand(4000, D)
    shares = [sample(rows, **options).bincount(minlength=12) / 4000 for sample in (head.sample, compiled)]
    torch.testing.assert_close(shares[0], shares[1], atol=0.05, rtol=0)


def test_a_draw_in_a_graph_takes_the_class_that_multinomial_takes():
    logits = torch.randn(300, 40)
    traced = torch.compile(lambda: draw(logits, None), backend="eager", fullgraph=True)
    torch.manual_seed(0)
    want = draw(logits, None)
    torch.manual_seed(0)
    torch.testing.assert_close(traced(), want)
