"""Single steps of heads, of bare matrix products and of other projects' losses, to be timed by `race`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from scripts.common.registered import heads_with_variants
from scripts.common.targets import make_targets
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab import Head

Step = Callable[[], Any]
Contender = tuple[Callable[..., Step], tuple[Any, ...]]  # what makes its step, and the arguments


class Work(NamedTuple):
    """What a step is about."""

    tokens: int  # N
    width: int  # d
    classes: int  # V
    targets: str = "zipf"
    device: str = "cpu"

    @property
    def chunk_sizes(self) -> list[int]:
        """Tokens a chunk so that its logits take about 16, 64 and 256 MiB."""
        return sorted({max(1, min(self.tokens, 2**power // self.classes)) for power in (22, 24, 26)})

    def __str__(self) -> str:
        return f"N={self.tokens:,} d={self.width:,} V={self.classes:,}"


def bench_head(name: str, options: dict[str, Any], work: Work) -> Head:
    """A head by name; with the option `tied` its weight is that of an embedding."""
    import torch

    from sqrtvocab import make_head

    options = dict(options)
    if options.pop("tied", False):
        table = torch.randn(work.classes, work.width, device=work.device) / math.sqrt(work.width)
        options["weight"] = torch.nn.Parameter(table)
    return make_head(name, work.width, work.classes, device=work.device, **options)


def loss_step(module: Any, work: Work, target: Any = None) -> Step:
    """Forward and backward of a module that takes (hidden [N, d], target [N])."""
    import torch

    hidden = torch.randn(work.tokens, work.width, device=work.device, requires_grad=True)
    if target is None:
        target = make_targets(work.targets, work.tokens, work.classes, work.device)

    def step() -> None:
        module(hidden, target).loss.backward()
        module.zero_grad()
        hidden.grad = None

    return step


def head_step(name: str, options: dict[str, Any], work: Work) -> Step:
    """Forward and backward of one of our heads."""
    return loss_step(bench_head(name, options, work), work)


def at_best_chunk(step: Step, take: Callable[[int], object], work: Work) -> Step:
    """The step with the chunk size at which it is fastest: nobody should lose by a bad choice of ours."""

    def seconds(size: int) -> float:
        take(size)
        step()  # warms it up
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    take(min(work.chunk_sizes, key=seconds))
    return step


def chunked_step(name: str, work: Work) -> Step:
    """Forward and backward of one of our heads, a chunk of the tokens at a time."""
    head: Any = bench_head(name, {"chunk_size": 1}, work)
    return at_best_chunk(loss_step(head, work), lambda size: setattr(head, "chunk_size", size), work)


def adam_step(name: str, with_head: bool, work: Work) -> Step:
    """A whole training step of one of our heads; or no more of it than the optimiser's pass."""
    import torch

    head = bench_head(name, {}, work)
    adam = torch.optim.Adam(head.parameters(), lr=1e-3, fused=True)
    hidden = torch.randn(work.tokens, work.width, device=work.device, requires_grad=True)
    target = make_targets(work.targets, work.tokens, work.classes, work.device)
    if not with_head:
        head(hidden, target).loss.backward()

    def step() -> None:
        if with_head:
            head(hidden, target).loss.backward()
        adam.step()
        if with_head:
            adam.zero_grad()
            hidden.grad = None

    return step


def soft_step(name: str, options: dict[str, Any], count: int, work: Work) -> Step:
    """The same with a distribution on `count` classes as the target of each row."""
    import torch

    head = bench_head(name, options, work)
    hidden = torch.randn(work.tokens, work.width, device=work.device, requires_grad=True)
    target = make_targets(work.targets, work.tokens * count, work.classes, work.device).view(-1, count)
    shares = torch.rand(target.shape, device=work.device).softmax(-1)

    def step() -> None:
        head(hidden, target, target_weight=shares).loss.backward()
        head.zero_grad()
        hidden.grad = None

    return step


def uneven_step(
    name: str, options: dict[str, Any], spread: str | None, largest: int | None, work: Work
) -> Step:
    """Forward and backward with groups whose sizes fall off as 1/rank, 100 classes on average.

    Args:
        spread: how the rows are spread, evenly over "groups" or over "classes"; None is equal groups, where
            both are the same.
        largest: cut groups of more classes.
    """
    import torch

    from sqrtvocab import Partition

    torch.manual_seed(0)
    num_groups = max(1, work.classes // 100)
    if spread is None:
        head = bench_head(name, {**options, "num_groups": num_groups}, work)
        return loss_step(head, work, make_targets("uniform", work.tokens, work.classes, work.device))
    weights = 1.0 / torch.arange(1, num_groups + 1, dtype=torch.float64)
    sizes = (weights / weights.sum() * (work.classes - num_groups)).long() + 1
    sizes[0] += work.classes - sizes.sum()
    labels = torch.arange(num_groups).repeat_interleave(sizes)[torch.randperm(work.classes)]
    weights = torch.ones(work.classes) if spread == "classes" else 1.0 / sizes[labels]
    target = torch.multinomial(weights.double(), work.tokens, replacement=True).to(work.device)
    head = bench_head(name, {**options, "partition": Partition.from_groups(labels, largest)}, work)
    return loss_step(head, work, target)


def decode_step(what: str, name: str, options: dict[str, Any], sharpness: float, work: Work) -> Step:
    """Decoding by the head's own method, or by way of the dense log_prob."""
    import torch

    torch.manual_seed(0)
    head = bench_head(name, options, work)
    hidden = sharpness * torch.randn(work.tokens, work.width, device=work.device)
    by: dict[str, Step] = {
        "dense": lambda: head.log_prob(hidden).argmax(-1),
        "predict": lambda: head.predict(hidden),
        "topk(10)": lambda: head.topk(hidden, 10),
        "sample": lambda: head.sample(hidden),
    }

    def step() -> None:
        with torch.no_grad():
            by[what]()

    return step


def gemm_step(weights_too: bool, work: Work) -> Step:
    """The products that a grouped head cannot do without: [N, d] x [d, G] and [N, d] x [d, S], and back."""
    import torch

    from sqrtvocab import Partition

    partition = Partition(work.classes)
    sizes, device = (partition.num_groups, partition.group_size), work.device
    hidden = torch.randn(work.tokens, work.width, device=device, requires_grad=True)
    weights = [torch.randn(size, work.width, device=device, requires_grad=weights_too) for size in sizes]
    upstream = [torch.randn(work.tokens, size, device=device) for size in sizes]

    def step() -> None:
        torch.autograd.backward([hidden @ weight.T for weight in weights], upstream)
        for tensor in (hidden, *weights):
            tensor.grad = None

    return step


# ---- peers ----


def torch_adaptive_step(work: Work) -> Step:
    """torch's module, with the clusters that our adaptive head has."""
    import torch

    from sqrtvocab import AdaptiveHead

    with torch.device("meta"):
        cutoffs = AdaptiveHead(work.width, work.classes).edges[:-1]
    module = torch.nn.AdaptiveLogSoftmaxWithLoss(work.width, work.classes, cutoffs)
    return loss_step(module.to(work.device), work)


def torch_chunked_step(work: Work) -> Step:
    """torch's own loss in chunks."""
    import torch.nn.functional as F
    from torch.nn import LinearCrossEntropyOptions

    options = [LinearCrossEntropyOptions(batch_chunk_size=1)]

    def take(size: int) -> None:
        options[0] = LinearCrossEntropyOptions(batch_chunk_size=size)

    step = _linear_loss_step(lambda h, w, y: F.linear_cross_entropy(h, w, y, options=options[0]), work)
    return at_best_chunk(step, take, work)


def liger_step(work: Work) -> Step:
    """Liger's fused loss."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss()
    return _linear_loss_step(lambda h, w, y: fused(w, h, y), work)


def cce_step(work: Work) -> Step:
    """Cut cross entropy: its kernels, which work in half precision only, or on a CPU its compiled form."""
    from cut_cross_entropy import linear_cross_entropy

    if work.device == "cpu":
        return _linear_loss_step(lambda h, w, y: linear_cross_entropy(h, w, y, impl="torch_compile"), work)
    return _linear_loss_step(lambda h, w, y: linear_cross_entropy(h.bfloat16(), w.bfloat16(), y), work)


def _linear_loss_step(loss: Callable[..., Any], work: Work) -> Step:
    """A peer that takes (hidden [N, d], weight [V, d], target [N])."""
    import torch

    hidden = torch.randn(work.tokens, work.width, device=work.device, requires_grad=True)
    weight = torch.randn(work.classes, work.width, device=work.device).div_(math.sqrt(work.width))
    weight.requires_grad_()
    target = make_targets(work.targets, work.tokens, work.classes, work.device)

    def step() -> None:
        loss(hidden, weight, target).backward()
        hidden.grad = weight.grad = None

    return step


def contenders(work: Work) -> dict[str, Contender]:
    """All that is trained: the registered heads, what bounds them, and their peers."""
    found: dict[str, Contender] = {}
    for title, (name, options) in heads_with_variants().items():
        found[title] = (head_step, (name, options, work))
        if not options and HEADS[name].takes("chunk_size"):
            found[f"{title}, chunked"] = (chunked_step, (name, work))
    found |= {
        "bound: two GEMMs": (gemm_step, (True, work)),
        "bound: hidden gradient only": (gemm_step, (False, work)),
        "peer: torch chunked": (torch_chunked_step, (work,)),
        "peer: torch adaptive": (torch_adaptive_step, (work,)),
    }
    if find_spec("cut_cross_entropy"):
        found["peer: cut cross entropy"] = (cce_step, (work,))
    if work.device == "cuda" and find_spec("liger_kernel"):  # Triton kernels
        found["peer: liger"] = (liger_step, (work,))
    return found
