"""Speed and memory of training and of writing, against the models of `transformers`.

    python scripts/bench_lm.py --quick            # a small vocabulary and short sequences, under a minute
    python scripts/bench_lm.py                    # the paper's 8.1 M shape
    python scripts/bench_lm.py --only memory      # the 32 x 512 step, simulated: needs no memory to speak of
    python scripts/bench_lm.py --json lm.json

Contenders take turns in processes of their own; what counts are the ratios. Memory is that of a whole
training step with Adam at the paper's batch of 32 x 512, from shapes alone (`sqrtvocab.measure.simulate`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from lm_models import Setting, Shape, make_model, make_training, simulate_training

# torch is imported where it is used: --help must not wait for it.

Step = Callable[[], Any]
TRAINED = ("GPT2LMHeadModel", "GPTNeoForCausalLM", "grouped", "grouped-linear", "adaptive", "flat", "no head")
WRITERS = (
    "GPT2LMHeadModel",
    "grouped",
    "grouped-linear",
    "grouped, all logits",
    "grouped-linear, all logits",
)
# name -> (numerator, denominator): how many times faster, and what the project promises.
PROMISES = {
    "grouped against GPT2LMHeadModel": ("grouped", "GPT2LMHeadModel", 3.5),
    "grouped against GPTNeoForCausalLM": ("grouped", "GPTNeoForCausalLM", 4.0),
    "grouped against no head at all": ("grouped", "no head", 0.93),
    "grouped-linear against GPT2LMHeadModel": ("grouped-linear", "GPT2LMHeadModel", 3.0),
}


@dataclass(frozen=True)
class Config:
    """Speed and memory of training and of writing, against the models of `transformers`."""

    only: Literal["all", "train", "memory", "write"] = "all"
    """Measure only this."""
    quick: bool = False
    """A small shape, to see that everything works."""
    vocab_size: int = 50257
    """V."""
    hidden_size: int = 128
    """d."""
    num_layers: int = 8
    """Transformer blocks."""
    num_attention_heads: int = 8
    """Attention heads of a block."""
    seq_len: int = 512
    """Tokens of a sequence."""
    batch_size: int = 4
    """Sequences of a training step that is timed (the one whose memory is counted has 32)."""
    new_tokens: int = 32
    """Tokens to write, after a prompt of 16."""
    repeats: int = 5
    """Turns of each contender."""
    threads: int = 1
    """Torch threads of each contender."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""
    json: Path | None = None
    """Write the figures to this file."""

    def shape(self) -> Shape:
        """What the contenders need to know."""
        if self.quick:
            return Shape(8192, 32, 2, 2, 64, 2, self.device)
        return Shape(
            self.vocab_size,
            self.hidden_size,
            self.num_layers,
            self.num_attention_heads,
            self.seq_len,
            self.batch_size,
            self.device,
        )


# ---- the contenders ----


def train_step(name: str, shape: Shape) -> Step:
    """Forward, backward and AdamW on random tokens."""
    return make_training(name, shape).step


def write_step(name: str, shape: Shape, batch_size: int, new_tokens: int) -> Step:
    """Greedy generation with a cache, always of the same length, by models that know what to say."""
    import torch

    name, _, dense = name.partition(", ")
    with torch.device(shape.device):
        model = make_model(name, shape).eval()
    if (
        name != "GPT2LMHeadModel"
    ):  # trained heads are peaked, new ones uniform; theirs does the same work for both
        model.head.group.weight.data *= 30
    ids = torch.randint(1, shape.vocab_size, (batch_size, min(16, shape.seq_len // 2)), device=shape.device)
    options = {
        "max_new_tokens": new_tokens,
        "min_new_tokens": new_tokens,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
        **({"logits_top_k": None} if dense else {}),
    }

    def step() -> None:
        with torch.inference_mode():
            model.generate(ids, **options)

    return step


# ---- the tables ----


def bench_training(config: Config, shape: Shape) -> dict[str, Any]:
    contenders = {name: (train_step, (name, shape)) for name in TRAINED}
    seconds = seconds_of(contenders, config, "training")
    tokens = shape.batch_size * shape.seq_len
    print(f"\ntraining, {shape.batch_size} x {shape.seq_len} tokens a step")
    print(f"{'':24}{'tokens/s':>12}{'x GPT-2':>10}")
    for name, value in seconds.items():
        ratio = f"{seconds['GPT2LMHeadModel'] / value:.2f}" if "GPT2LMHeadModel" in seconds else ""
        print(f"{name:24}{tokens / value:>12,.0f}{ratio:>10}")
    ratios = {
        title: {"ratio": seconds[slow] / seconds[fast], "promised": least}
        for title, (fast, slow, least) in PROMISES.items()
        if fast in seconds and slow in seconds
    }
    print()
    for title, figures in ratios.items():
        print(f"{title:40}{figures['ratio']:>7.2f}x  (at least {figures['promised']:g}x)")
    return {"tokens_per_s": {name: tokens / value for name, value in seconds.items()}, "ratios": ratios}


def bench_memory(shape: Shape) -> dict[str, Any]:
    batch_size = 32 if shape.vocab_size > 10_000 else shape.batch_size
    on_cpu = replace(shape, device="cpu", batch_size=batch_size)
    peaks = {name: simulate_training(name, on_cpu, Setting(optimizer="plain")).peak for name in TRAINED}
    print(f"\nmemory of a training step, {batch_size} x {shape.seq_len} tokens, float32, no dropout")
    print(f"{'':24}{'GiB':>8}{'of GPT-2':>10}")
    for name, peak in peaks.items():
        print(f"{name:24}{peak / 2**30:>8.2f}{peak / peaks['GPT2LMHeadModel']:>10.2f}")
    weights = 16 * sum(p.numel() for p in make_model("no head", on_cpu).parameters())
    rest = peaks["grouped"] - peaks["no head"]
    print(
        f"\nof grouped's {peaks['grouped'] / 2**30:.2f} GiB: {weights / 2**30:.2f} weights, gradients and "
        f"Adam of the backbone, {(peaks['no head'] - weights) / 2**30:.2f} its activations, "
        f"{rest / 2**30:.2f} the head"
    )
    return {"peak_bytes": peaks, "backbone_weights_gradients_adam": weights}


def bench_writing(config: Config, shape: Shape) -> dict[str, Any]:
    results = {}
    new_tokens = 8 if config.quick else config.new_tokens
    for batch_size in (1, 32):
        contenders = {name: (write_step, (name, shape, batch_size, new_tokens)) for name in WRITERS}
        seconds = seconds_of(contenders, config, f"writing, batch {batch_size}")
        print(f"\nwriting, batch {batch_size}")
        print(f"{'':30}{'ms/token':>12}{'x GPT-2':>10}")
        for name, value in seconds.items():
            ratio = f"{seconds['GPT2LMHeadModel'] / value:.2f}" if "GPT2LMHeadModel" in seconds else ""
            print(f"{name:30}{1e3 * value / new_tokens:>12.2f}{ratio:>10}")
        results[f"batch {batch_size}"] = {name: 1e3 * s / new_tokens for name, s in seconds.items()}
    return {"ms_per_token": results}


def seconds_of(contenders: Any, config: Config, title: str) -> dict[str, float]:
    from sqrtvocab.measure.race import race

    results = race(
        contenders,
        repeats=config.repeats,
        threads=config.threads,
        device=config.device,
        title=title,
        preload=("torch", "lm.model"),
    )
    return {name: result.seconds for name, result in results.items()}


def main() -> None:
    config = tyro.cli(Config, description=__doc__)
    problems = [
        f"--{name.replace('_', '-')} must be at least 1, got {value}"
        for name, value in vars(config).items()
        if isinstance(value, int) and not isinstance(value, bool) and value < 1
    ]
    if config.json is not None and not config.json.resolve().parent.is_dir():
        problems.append(f"--json: no folder {config.json.resolve().parent}")
    if problems:
        print(f"bench_lm: {'; '.join(problems)}", file=sys.stderr)
        raise SystemExit(2)
    import torch
    import transformers

    from sqrtvocab.measure.machine import describe_machine

    if config.device == "cuda" and not torch.cuda.is_available():
        print("bench_lm: --device cuda: no CUDA device here; leave the flag out", file=sys.stderr)
        raise SystemExit(2)
    shape = config.shape()
    machine = f"{describe_machine(config.device, config.threads)}, transformers {transformers.__version__}"
    print(f"{machine}; V={shape.vocab_size:,}, hidden {shape.hidden_size}, {shape.num_layers} layers")
    figures: dict[str, Any] = {"machine": machine, "shape": asdict(shape)}
    if config.only in ("all", "memory"):
        figures["memory"] = bench_memory(shape)
    if config.only in ("all", "train"):
        figures["training"] = bench_training(config, shape)
    if config.only in ("all", "write"):
        figures["writing"] = bench_writing(config, shape)
    if config.json is not None:
        config.json.write_text(json.dumps(figures, indent=1))
        print(f"\nwritten to {config.json}")


if __name__ == "__main__":
    main()
