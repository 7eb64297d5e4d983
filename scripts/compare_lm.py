"""Train the same small GPT-2 with every head, for equally many steps, and write the table.

    python scripts/compare_lm.py --data tinystories                       # about an hour on two cores
    python scripts/compare_lm.py --data FOLDER --steps 300 --out runs/compare
    python scripts/compare_lm.py --data FOLDER --heads grouped flat-tied  # some of them

Each model is a run of `train_lm` in --out, so it can be watched in TensorBoard and is resumed when the script
is called again. The table goes to --table, with the commands that made it.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

# What each is, and the flags that make it.
HEADS = {
    "grouped-linear": ("grouped-linear, frequency groups, prior (the default)", []),
    "grouped": ("grouped (the paper's)", ["--head", "grouped", "--grouping", "index", "--no-prior"]),
    "grouped-prior": ("grouped, frequency groups, prior", ["--head", "grouped"]),
    "grouped-linear-tied": ("grouped-linear, tied, frequency groups, prior", ["--tie-embeddings"]),
    "adaptive": ("adaptive, by frequency, prior", ["--head", "adaptive"]),
    "flat-tied": ("flat, tied (GPT-2's own)", ["--head", "flat", "--tie-embeddings", "--no-prior"]),
    "flat": ("flat, prior", ["--head", "flat"]),
}


@dataclass(frozen=True)
class Config:
    """Train the same small GPT-2 with every head, for equally many steps, and write the table."""

    data: str
    """As `train_lm --data`."""
    heads: tuple[str, ...] = tuple(HEADS)
    """Which of them."""
    steps: int = 400
    """Optimiser steps of each."""
    batch_size: int = 8
    """Sequences of a step."""
    hidden_size: int = 128
    """Width of the hidden state."""
    seed: int = 0
    """Decides the order of the text and the initial weights."""
    threads: int = 2
    """Torch threads."""
    out: Path = Path("runs/compare")
    """Folder for the runs."""
    table: Path | None = None
    """File for the table, in Markdown; OUT/table.md by default."""


def command(config: Config, name: str) -> list[str]:
    """The `train_lm` call of one contender."""
    shape = {"data": config.data, "hidden-size": config.hidden_size, "batch-size": config.batch_size}
    run = {"max-steps": config.steps, "eval-every": config.steps, "sample-every": config.steps}
    rest = {"eval-tokens": 131_072, "seed": config.seed, "out": config.out / name, "resume": "auto"}
    flags = [part for key, value in {**shape, **run, **rest}.items() for part in (f"--{key}", str(value))]
    return ["train_lm", *flags, *HEADS[name][1]]


def result(run: Path) -> dict[str, Any]:
    """What a finished run says about itself."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    scored = [row for row in rows if "loss/validation" in row][-1]
    return {
        "step": scored["step"],
        "loss": scored["loss/validation"],
        "bits_per_byte": scored["bits_per_byte"],
        "accuracy": scored["accuracy/token"],
        "seconds": 60 * scored["minutes"],
        "memory": max(row["memory/peak"] for row in rows if "memory/peak" in row),
    }


def main() -> None:
    config = tyro.cli(Config, description=__doc__)
    if unknown := [name for name in config.heads if name not in HEADS]:
        print(f"compare_lm: --heads {unknown[0]}: expected some of {', '.join(HEADS)}", file=sys.stderr)
        raise SystemExit(2)
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
    for number, name in enumerate(config.heads, start=1):
        call = command(config, name)
        print(f"\n[{number}/{len(config.heads)}] {shlex.join(call)}", file=sys.stderr)
        # The installed command, by its module: it must be this environment's.
        program = [sys.executable, "-m", "lm.train", *call[1:]]
        if code := subprocess.run(program, env=environment).returncode:
            print(f"compare_lm: {name} ended with exit code {code}", file=sys.stderr)
            raise SystemExit(code)
    settings = json.loads((config.out / config.heads[0] / "config.json").read_text("utf-8"))
    tokens = config.batch_size * settings["seq_len"]
    lines = [
        f"{config.steps} steps of {tokens:,} tokens of {settings['data_used']}, GPT-2 with hidden "
        f"{config.hidden_size} and {settings['num_layers']} layers, V = {settings['vocab_size']:,}, seed "
        f"{config.seed}, {config.threads} thread(s) of {platform.processor() or platform.machine()}, torch "
        f"{settings['torch']}.",
        "",
        "| head | validation loss | bits per byte | token accuracy | training seconds | peak memory, GiB |",
        "|---|---|---|---|---|---|",
    ]
    for name in config.heads:
        row = result(config.out / name)
        lines.append(
            f"| {HEADS[name][0]} | {row['loss']:.3f} | {row['bits_per_byte']:.3f} | {row['accuracy']:.1%} | "
            f"{row['seconds']:,.0f} | {row['memory']:.1f} |"
        )
    calls = (shlex.join(command(config, name)) for name in config.heads)
    lines += ["", "```bash", *calls, "```"]
    table = config.table or config.out / "table.md"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
