"""Speed and memory of training and of writing, against the models of `transformers`.

    python scripts/bench_lm.py --quick            # a small vocabulary and short sequences, under a minute
    python scripts/bench_lm.py                    # the paper's 8.1 M shape
    python scripts/bench_lm.py --only memory      # the 32 x 512 step, simulated: needs no memory to speak of
    python scripts/bench_lm.py --only memory --gpu t4 --hidden-size 512 --batch-size 16     # does it fit?
    python scripts/bench_lm.py --json lm.json

Contenders take turns in processes of their own; what counts are the ratios. Memory is that of a whole
training step with Adam at the paper's batch of 32 x 512, from shapes alone (`sqrtvocab.measure.simulate`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scripts.common.command import json_problems, read_flags, require_device, run_script
from scripts.common.lm_models import (
    FLAT,
    WRITING_MODES,
    Setting,
    Shape,
    simulate_training,
    train_step,
    write_step,
)
from scripts.common.registered import plain_heads
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab.measure import Memory

GPT2 = FLAT["GPT-2"]
GPU_SETTINGS = {
    "float32": Setting(),
    "half precision": Setting(precision="half"),
    "half precision, activation checkpointing": Setting(precision="half", checkpoint=True),
}
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
    batch_size: int | None = None
    """Sequences of a training step; 4 of one that is timed and 32 of one whose memory is counted, unless
    given."""
    gpu: Literal["t4", "a10g", "l40s", "a100-40", "a100", "h100"] | None = None
    """With --only memory: whether a step of this shape fits on this GPU, simulated by its rules."""
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

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_attention_heads", "seq_len", "batch_size")
        problems = at_least(self, 1, *sizes, "new_tokens", "repeats", "threads")
        if not problems and self.hidden_size % self.num_attention_heads:
            problems.append(
                f"--hidden-size {self.hidden_size} must be a multiple of --num-attention-heads "
                f"{self.num_attention_heads}"
            )
        if self.gpu is not None and self.only != "memory":
            problems.append("--gpu is about memory, and simulated: say --only memory, too")
        if problems := [*problems, *json_problems(self.json)]:
            raise UserError("; ".join(problems))

    def shape(self, batch_size: int) -> Shape:
        """What the contenders need to know; with so many sequences unless a flag says otherwise."""
        if self.quick:
            return Shape(8192, 32, 2, 2, 64, 2, self.device)
        return Shape(
            self.vocab_size,
            self.hidden_size,
            self.num_layers,
            self.num_attention_heads,
            self.seq_len,
            self.batch_size or batch_size,
            self.device,
        )


# ---- the contenders ----


def trained() -> list[str]:
    """The models whose training is measured: those of `transformers`, ours with each head, and none."""
    return [*FLAT.values(), *plain_heads(), "no head"]


def writers() -> list[str]:
    """The models that write; of a head that can do without all logits, both ways."""
    sparse = [name for name in plain_heads() if HEADS[name].sparse_topk]
    return [GPT2, *sparse, *(f"{name}, all logits" for name in sparse)]


# ---- the tables ----


def bench_training(config: Config, shape: Shape) -> dict[str, Any]:
    """Tokens a second of training steps."""
    contenders = {name: (train_step, (name, shape)) for name in trained()}
    seconds = seconds_of(contenders, config, "training")
    tokens = shape.batch_size * shape.seq_len
    speeds = {name: tokens / value for name, value in seconds.items()}
    print(f"\ntraining, {shape.batch_size} x {shape.seq_len} tokens a step")
    show_times("tokens/s", {name: f"{speed:,.0f}" for name, speed in speeds.items()}, seconds)
    ratios = {
        title: {"ratio": seconds[slow] / seconds[fast], "promised": least}
        for title, (fast, slow, least) in PROMISES.items()
        if fast in seconds and slow in seconds
    }
    print()
    for title, figures in ratios.items():
        print(f"{title:40}{figures['ratio']:>7.2f}x  (at least {figures['promised']:g}x)")
    return {"tokens_per_s": speeds, "ratios": ratios}


def show_times(heading: str, shown: dict[str, str], seconds: dict[str, float]) -> None:
    """A line for each contender, with how many times faster than GPT-2 it is."""
    print(f"{'':30}{heading:>12}{'x GPT-2':>10}")
    for name, text in shown.items():
        ratio = f"{seconds[GPT2] / seconds[name]:.2f}" if GPT2 in seconds else ""
        print(f"{name:30}{text:>12}{ratio:>10}")


def bench_memory(shape: Shape) -> dict[str, Any]:
    """Memory of a training step on the CPU."""
    memories = {name: simulate_training(name, shape, Setting(optimizer="plain")) for name in trained()}
    print(
        f"\nmemory of a training step, {shape.batch_size} x {shape.seq_len} tokens, float32, no dropout, GiB"
    )
    base = memories[GPT2].peak
    show_parts(memories, {name: f"{memory.peak / base:.2f} of GPT-2" for name, memory in memories.items()})
    return figures_of(memories)


def bench_gpu(shape: Shape, key: str) -> dict[str, Any]:
    """Whether a step fits on a GPU."""
    from sqrtvocab.measure import GPUS

    gpu, figures = GPUS[key], {}
    models = {**FLAT, **{name: name for name in plain_heads()}}
    print(
        f"\nmemory of a training step on one {gpu.name}, which has {gpu.usable / 2**30:.2f} GiB for it, "
        f"{shape.batch_size} x {shape.seq_len} tokens, fused AdamW, no dropout, GiB"
    )
    for title, setting in GPU_SETTINGS.items():
        memories = {name: simulate_training(model, shape, setting, gpu) for name, model in models.items()}
        verdicts = {name: "fits" if gpu.fits(m.peak) else "out of memory" for name, m in memories.items()}
        print(f"\n{title}")
        show_parts(memories, verdicts)
        figures[title] = figures_of(memories)
    return {"gpu": gpu.name, "usable_bytes": gpu.usable, "settings": figures}


def show_parts(memories: dict[str, Memory], remarks: dict[str, str]) -> None:
    """The peak of each model, and of what it is made."""
    parts = next(iter(memories.values()))._fields
    print(f"{'':20}" + "".join(f"{part:>12}" for part in parts) + f"{'peak':>8}")
    for name, memory in memories.items():
        cells = "".join(f"{size / 2**30:>12.2f}" for size in memory)
        print(f"{name:20}{cells}{memory.peak / 2**30:>8.2f}  {remarks[name]}")


def figures_of(memories: dict[str, Memory]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "peak_bytes": {name: memory.peak for name, memory in memories.items()},
        "bytes": {name: memory._asdict() for name, memory in memories.items()},
    }


def bench_writing(config: Config, shape: Shape) -> dict[str, Any]:
    """Milliseconds for each token that is written."""
    results = {}
    new_tokens = 8 if config.quick else config.new_tokens
    for mode, batch_size in product(WRITING_MODES, (1, 32)):
        contenders = {name: (write_step, (name, mode, shape, batch_size, new_tokens)) for name in writers()}
        title = f"{mode}, batch {batch_size}"
        seconds = seconds_of(contenders, config, title)
        results[title] = {name: 1e3 * value / new_tokens for name, value in seconds.items()}
        print(f"\nwriting, {title}")
        show_times("ms/token", {name: f"{ms:.2f}" for name, ms in results[title].items()}, seconds)
    return {"ms_per_token": results}


def seconds_of(contenders: Any, config: Config, title: str) -> dict[str, float]:
    """Seconds a step of each contender that did not fail."""
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


def main(config: Config) -> None:
    """Race, simulate, tabulate."""
    import transformers

    from sqrtvocab.measure.machine import describe_machine

    require_device(config.device)
    shape = config.shape(batch_size=4)
    simulated = replace(config.shape(batch_size=32), device="cpu")
    machine = f"{describe_machine(config.device, config.threads)}, transformers {transformers.__version__}"
    print(f"{machine}; V={shape.vocab_size:,}, hidden {shape.hidden_size}, {shape.num_layers} layers")
    figures: dict[str, Any] = {"machine": machine, "shape": asdict(shape)}
    if config.gpu is not None:
        figures["gpu"] = bench_gpu(simulated, config.gpu)
    elif config.only in ("all", "memory"):
        figures["memory"] = bench_memory(simulated)
    if config.only in ("all", "train"):
        figures["training"] = bench_training(config, shape)
    if config.only in ("all", "write"):
        figures["writing"] = bench_writing(config, shape)
    if config.json is not None:
        write_json(config.json, figures)
        print(f"\nwritten to {config.json}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
