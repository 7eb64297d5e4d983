"""The paper's table 3: throughput and FLOPs of GPT-2, GPT-Neo and ours.

    python scripts/table3_throughput_flops.py                # about eight minutes on two free cores
    python scripts/table3_throughput_flops.py --only flops   # exact, from shapes: a minute
    python scripts/table3_throughput_flops.py --quick        # small shapes, to see that everything works

FLOPs by torch's counter, and by the paper's convention: multiply-adds of linear layers for one sequence of
512 tokens. Throughput is that of whole training steps; the contenders take turns, so trust the ratios. Writes
throughput_flops.md and throughput_flops.csv; what --only leaves out is kept from an earlier call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scripts.common.command import make_folder, read_flags, require_device, run_script
from scripts.common.lm_models import MODELS, QUICK_SIZES, Shape, make_training, train_step
from scripts.common.pages import write_page
from scripts.common.records import Record, Row
from scripts.reports.throughput import Rows, pages
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least

# torch is imported where it is used: --help must not wait for it.

# Sequences of a timed step: about as many as a CPU takes in some seconds with the slowest contender.
SIZES = {
    "8.1 M": Shape(hidden_size=128, batch_size=4),
    "19.3 M": Shape(hidden_size=256, batch_size=2),
    "152 M": Shape(hidden_size=1024, batch_size=1),
}


@dataclass(frozen=True)
class Config:
    """Throughput and FLOPs of GPT-2, GPT-Neo and ours."""

    only: Literal["all", "flops", "throughput"] = "all"
    """Measure only this."""
    quick: bool = False
    """Two small shapes, to see that everything works; written to runs/quick."""
    repeats: int = 5
    """Turns of each contender; those slower than five seconds a step take two."""
    threads: int = 1
    """Torch threads of each contender."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run the steps that are timed; on cuda with the paper's batch of 32."""
    out: Path | None = None
    """Folder for throughput_flops.md and throughput_flops.csv; docs/results by default."""

    def __post_init__(self) -> None:
        if problems := at_least(self, 1, "repeats", "threads"):
            raise UserError("; ".join(problems))


def measure_flops(model: str, shape: Shape) -> Row:
    """Of one sequence."""
    from sqrtvocab.measure.flops import count_flops

    one = replace(shape, batch_size=1, device="cpu")
    forward = count_flops(lambda: make_training(MODELS[model], one).loss)
    step = count_flops(lambda: make_training(MODELS[model], one).step)
    return {
        "multiply_adds": str(forward.multiply_adds),
        "forward_flops": str(forward.total),
        "step_flops": str(step.total),
    }


def measure_throughput(size: str, shape: Shape, config: Config) -> dict[str, Row]:
    """Of training steps, for each model."""
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.race import race

    shape = replace(shape, device=config.device)
    if config.device == "cuda" and not config.quick:
        shape = replace(shape, batch_size=32)
    results = race(
        {model: (train_step, (name, shape)) for model, name in MODELS.items()},
        repeats=config.repeats,
        threads=config.threads,
        device=config.device,
        title=size,
        preload=("torch", "lm.model"),
    )
    tokens = shape.batch_size * shape.seq_len
    shared = {
        "batch_size": str(shape.batch_size),
        "device": config.device,
        "threads": str(config.threads),
        "repeats": str(config.repeats),
        "machine": describe_machine(config.device, config.threads),
    }
    return {model: {"tokens_per_s": f"{tokens / r.seconds:.1f}", **shared} for model, r in results.items()}


def main(config: Config) -> None:
    """Count, time, tabulate."""
    from tqdm import tqdm

    require_device(config.device)
    out = make_folder(config.out, config.quick)
    sizes = QUICK_SIZES if config.quick else SIZES
    record = Record(out / "throughput_flops.csv", ("size", "model", "hidden", "vocab"))
    subjects: Rows = {
        (size, model): {
            "size": size, "model": model, "hidden": str(shape.hidden_size), "vocab": str(shape.vocab_size),
        }
        for size, shape in sizes.items()
        for model in MODELS
    }  # fmt: skip
    record.rows()  # refuses another file in its place before the work begins
    if config.only != "throughput":
        for (size, model), subject in tqdm(subjects.items(), desc="counting FLOPs", disable=None):
            record.keep({**subject, **measure_flops(model, sizes[size])})
    if config.only != "flops":
        for size, shape in sizes.items():
            for model, figures in measure_throughput(size, shape, config).items():
                record.keep({**subjects[size, model], **figures})
    known = {record.key_of(row): row for row in record.rows()}
    rows = {place: known.get(record.key_of(subject), subject) for place, subject in subjects.items()}
    write_page(out / "throughput_flops.md", *pages(rows, sizes))
    print(out / "throughput_flops.md")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
