"""Time and memory of every head, against bare matrix products and the peers found on this machine.

    python scripts/bench_heads.py --quick                 # about a minute
    python scripts/bench_heads.py                         # the paper's shapes, about half an hour on one core
    python scripts/bench_heads.py --tables train --shape 4096 128 50257  # tokens, hidden width, classes
    python scripts/bench_heads.py --json heads.json

Each contender lives in a process of its own. Its first run warms it up and counts the memory; then they take
turns, so that a busy machine slows all of them alike. What counts are the ratios within one run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import tyro
from results import refuse

from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, one_line_errors

# torch is imported where it is used: --help must not wait for it.

SHAPES = [
    (4096, 128, 50257),
    (16384, 128, 50257),
    (16384, 512, 50257),
    (256, 512, 184320),
    (2048, 1024, 262144),
]
QUICK_SHAPES = [(1024, 128, 50257)]
DECODE_SHAPE = (256, 512, 184320)
QUICK_DECODE_SHAPE = (32, 512, 184320)

BASELINE = "flat"
DECODE_BASELINE = "dense"


@dataclass
class Config:
    """Time and memory of every head, against bare matrix products and the peers found on this machine."""

    quick: bool = False
    """One small shape and a small decode, about a minute."""
    shape: tuple[int, int, int] | None = None
    """This shape instead of the paper's: tokens N, hidden width d, classes V."""
    tables: Literal["all", "train", "decode"] = "all"
    """Forward and backward, decoding, or both."""
    targets: Literal["zipf", "uniform"] = "zipf"
    """How the targets are distributed: as words are (rank 1 is class 0), or all classes alike."""
    repeats: int = 5
    """Turns of each contender; those slower than five seconds take two."""
    threads: int = 1
    """Torch threads of each contender."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""
    json: Path | None = None
    """Write the figures to this file."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "repeats", "threads")
        if self.shape is not None and min(self.shape) < 1:
            problems.append(f"--shape must be positive, got {self.shape}")
        if self.json is not None and not self.json.resolve().parent.is_dir():
            problems.append(f"--json: no folder {self.json.resolve().parent}")
        if problems:
            raise UserError("; ".join(problems))


# ---- the contenders: functions that make the step to be timed ----

Step = Callable[[], Any]


def make_targets(kind: str, n: int, v: int, device: str) -> Any:
    import torch

    if kind == "uniform":
        return torch.randint(v, (n,), device=device)
    weights = 1.0 / torch.arange(1, v + 1, dtype=torch.float64)
    return torch.multinomial(weights, n, replacement=True).to(device)


def head_step(name: str, options: dict[str, Any], shape: tuple[int, int, int], config: Config) -> Step:
    import torch

    from sqrtvocab import make_head

    n, d, v = shape
    if options.pop("tied", False):
        options["weight"] = torch.nn.Parameter(torch.randn(v, d))
    head = make_head(name, d, v, **options).to(config.device)
    hidden = torch.randn(n, d, device=config.device, requires_grad=True)
    target = make_targets(config.targets, n, v, config.device)

    def step() -> None:
        head(hidden, target).loss.backward()
        head.zero_grad()
        hidden.grad = None

    return step


def torch_adaptive_step(shape: tuple[int, int, int], config: Config) -> Step:
    """torch's module with the clusters that our adaptive head has."""
    import torch

    from sqrtvocab import make_head

    n, d, v = shape
    cutoffs = make_head("adaptive", d, v).edges[:-1]  # type: ignore[attr-defined]
    head = torch.nn.AdaptiveLogSoftmaxWithLoss(d, v, cutoffs).to(config.device)
    hidden = torch.randn(n, d, device=config.device, requires_grad=True)
    target = make_targets(config.targets, n, v, config.device)

    def step() -> None:
        head(hidden, target).loss.backward()
        head.zero_grad()
        hidden.grad = None

    return step


def linear_peer_step(loss: Callable[..., Any], shape: tuple[int, int, int], config: Config) -> Step:
    """A peer that takes (hidden [N, d], weight [V, d], target [N])."""
    import torch

    n, d, v = shape
    hidden = torch.randn(n, d, device=config.device, requires_grad=True)
    weight = torch.randn(v, d, device=config.device).div_(math.sqrt(d)).requires_grad_()
    target = make_targets(config.targets, n, v, config.device)

    def step() -> None:
        loss(hidden, weight, target).backward()
        hidden.grad = weight.grad = None

    return step


def torch_chunked_step(shape: tuple[int, int, int], config: Config) -> Step:
    import torch.nn.functional as F
    from torch.nn import LinearCrossEntropyOptions

    options = LinearCrossEntropyOptions(batch_chunk_size=chunk_size(shape))
    return linear_peer_step(lambda h, w, y: F.linear_cross_entropy(h, w, y, options=options), shape, config)


def liger_step(shape: tuple[int, int, int], config: Config) -> Step:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss()
    return linear_peer_step(lambda h, w, y: fused(w, h, y), shape, config)


def cce_step(shape: tuple[int, int, int], config: Config) -> Step:
    """Cut cross entropy works in half precision only."""
    from cut_cross_entropy import linear_cross_entropy

    def loss(h: Any, w: Any, y: Any) -> Any:
        return linear_cross_entropy(h.bfloat16(), w.bfloat16(), y)

    return linear_peer_step(loss, shape, config)


def gemm_step(weights_too: bool, shape: tuple[int, int, int], config: Config) -> Step:
    """The products that a grouped head cannot do without: [N, d] x [d, G] and [N, d] x [d, S], and back."""
    import torch

    from sqrtvocab import Partition

    n, d, v = shape
    partition = Partition(v)
    sizes = partition.num_groups, partition.group_size
    hidden = torch.randn(n, d, device=config.device, requires_grad=True)
    weights = [torch.randn(size, d, device=config.device, requires_grad=weights_too) for size in sizes]
    upstream = [torch.randn(n, size, device=config.device) for size in sizes]

    def step() -> None:
        torch.autograd.backward([hidden @ weight.T for weight in weights], upstream)
        for tensor in (hidden, *weights):
            tensor.grad = None

    return step


def chunk_size(shape: tuple[int, int, int]) -> int:
    """Tokens a chunk so that its logits take about 64 MiB."""
    return max(1, min(shape[0], 2**24 // shape[2]))


def contenders(shape: tuple[int, int, int], device: str) -> dict[str, tuple[Callable[..., Step], tuple]]:
    """Name -> (maker of a step, its first arguments); the maker also takes shape and config."""
    found: dict[str, tuple[Callable[..., Step], tuple]] = {
        "flat": (head_step, ("flat", {})),
        "flat, chunked": (head_step, ("flat", {"chunk_size": chunk_size(shape)})),
        "adaptive": (head_step, ("adaptive", {})),
        "grouped": (head_step, ("grouped", {})),
        "grouped, film": (head_step, ("grouped", {"modulation": "film"})),
        "grouped, both": (head_step, ("grouped", {"modulation": "both"})),
        "grouped-linear": (head_step, ("grouped-linear", {})),
        "grouped-low-rank": (head_step, ("grouped-low-rank", {})),
        "grouped-linear, tied": (head_step, ("grouped-linear", {"tied": True})),
        "bound: two GEMMs": (gemm_step, (True,)),
        "bound: hidden gradient only": (gemm_step, (False,)),
        "peer: torch chunked": (torch_chunked_step, ()),
        "peer: torch adaptive": (torch_adaptive_step, ()),
    }
    if device == "cuda":  # Triton kernels
        if find_spec("liger_kernel"):
            found["peer: liger"] = (liger_step, ())
        if find_spec("cut_cross_entropy"):
            found["peer: cut cross entropy"] = (cce_step, ())
    return found


def decode_step(what: str, name: str, sharpness: float, shape: tuple[int, int, int], config: Config) -> Step:
    """Decoding by the head's own method, or by way of the dense log_prob."""
    import torch

    from sqrtvocab import make_head

    n, d, v = shape
    torch.manual_seed(0)
    options = {"weight": torch.nn.Parameter(torch.randn(v, d) / math.sqrt(d))} if "tied" in name else {}
    head = make_head(name.removesuffix(", tied"), d, v, **options).to(config.device)
    hidden = sharpness * torch.randn(n, d, device=config.device)
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


# ---- tables ----


@dataclass
class Row:
    """One contender's figures."""

    name: str
    milliseconds: float
    megabytes: float
    parameters: int | None
    turns: int


def head_parameters(maker: Callable[..., Step], arguments: tuple) -> int | None:
    """How many parameters a head has; bounds and peers have none to speak of."""
    import torch

    from sqrtvocab import make_head

    if maker is not head_step:
        return None
    name, options, (_, d, v), _ = arguments
    with torch.device("meta"):
        tied = {"weight": torch.nn.Parameter(torch.empty(v, d))} if options.get("tied") else {}
        head = make_head(name, d, v, **{k: x for k, x in options.items() if k != "tied"}, **tied)
    return sum(parameter.numel() for parameter in head.parameters())


def show(title: str, rows: list[Row], baseline: str) -> None:
    reference = next((row for row in rows if row.name == baseline), None)
    print(f"\n{title}")
    print(f"{'':28}{'ms':>10}{'x faster':>10}{'peak MB':>10}{'x less':>10}{'parameters':>13}")
    for row in rows:
        faster = less = ""
        if reference is not None:
            faster = f"{reference.milliseconds / row.milliseconds:.1f}"
            less = f"{reference.megabytes / max(row.megabytes, 1e-9):.1f}"
        parameters = "" if row.parameters is None else f"{row.parameters:,}"
        print(
            f"{row.name:28}{row.milliseconds:10.1f}{faster:>10}{row.megabytes:10.1f}{less:>10}{parameters:>13}"
        )


def cases(config: Config) -> Iterator[tuple[str, dict, str, tuple[int, int, int]]]:
    """(title, contenders, baseline, shape) of every table."""
    shapes = [config.shape] if config.shape else QUICK_SHAPES if config.quick else SHAPES
    for shape in shapes if config.tables != "decode" else ():
        n, d, v = shape
        entries = {
            name: (maker, (*arguments, shape, config))
            for name, (maker, arguments) in contenders(shape, config.device).items()
        }
        yield f"train N={n:,} d={d:,} V={v:,}", entries, BASELINE, shape
    if config.tables == "train":
        return
    shape = config.shape or (QUICK_DECODE_SHAPE if config.quick else DECODE_SHAPE)
    for head in ("grouped", "grouped-linear", "grouped-low-rank", "grouped-linear, tied"):
        # Scores of standard deviation 17 and 0.6: a head that knows, and one that knows nothing yet.
        for kind, sharpness in (("peaked", 30.0), ("nearly uniform", 1.0))[: 1 if config.quick else 2]:
            steps = (DECODE_BASELINE, "predict", "topk(10)", "sample")
            entries = {what: (decode_step, (what, head, sharpness, shape, config)) for what in steps}
            n, d, v = shape
            yield f"decode {head}, {kind}, N={n:,} d={d:,} V={v:,}", entries, DECODE_BASELINE, shape


def main(config: Config) -> None:
    import torch

    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.race import race

    if config.device == "cuda" and not torch.cuda.is_available():
        refuse("--device cuda: no CUDA device here; leave the flag out to run on the CPU")
    machine = describe_machine(config.device, config.threads)
    print(f"{machine}; {config.targets} targets; medians of forward and backward")
    tables = []
    for title, entries, baseline, shape in cases(config):
        results = race(
            entries,
            repeats=config.repeats,
            threads=config.threads,
            device=config.device,
            title=title,
            preload=("torch", "sqrtvocab"),
        )
        rows = [
            Row(name, 1e3 * r.seconds, r.peak / 1e6, head_parameters(*entries[name]), r.turns)
            for name, r in results.items()
        ]
        if not rows:
            raise SystemExit(f"bench_heads: {title}: every contender failed")
        show(title, rows, baseline)
        tables.append(
            {"title": title, "shape": shape, "baseline": baseline, "rows": [asdict(r) for r in rows]}
        )
    if config.json is not None:
        settings = {"targets": config.targets, "repeats": config.repeats}
        config.json.write_text(json.dumps({"machine": machine, **settings, "tables": tables}, indent=1))
        print(f"\nwritten to {config.json}")


if __name__ == "__main__":
    with one_line_errors("bench_heads"):
        arguments = tyro.cli(Config, description=__doc__)
    main(arguments)
