"""The image experiment in four minutes: the same CNN with the grouped head and with the flat head.

    python scripts/demo.py                 # writes runs/demo

Draws a sheet of images, trains both heads on the quickstart's sub-space, and prints what each of them learnt.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from classifier.presets import PRESETS
from scripts.common.command import read_flags, run_script

OUT = Path("runs/demo")
MODULES = {"shapesgen": "shapesgen.cli", "train_classifier": "classifier.train"}


@dataclass(frozen=True)
class Config:
    """It has no flags."""


def run(command: str, *arguments: object) -> None:
    """Run a command of this project and show it; the demo ends if it fails."""
    words = [str(argument) for argument in arguments]
    print("\n$", command, *words, flush=True)
    ended = subprocess.run([sys.executable, "-m", MODULES[command], *words], check=False)
    if ended.returncode:
        raise SystemExit(ended.returncode)


def main(_: Config) -> None:
    """The whole demo."""
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir(parents=True)
    run("shapesgen", "preview", "--out", OUT / "sheet.png")
    heads = ("grouped", "flat")
    for head in heads:
        run("train_classifier", "--preset", "quickstart", "--head", head, "--out", OUT / head)

    config = PRESETS["quickstart"]
    states = {head: json.loads((OUT / head / "last" / "state.json").read_text("utf-8")) for head in heads}
    print(
        f"\n{config.space().num_classes:,} classes, validation images, after {config.max_steps} steps each:\n"
    )
    print(f"{'':<30}" + "".join(f"{head:>10}" for head in heads) + f"{'chance':>10}")
    chance = {"accuracy/overall": 1 / config.space().num_classes}
    chance |= {f"attribute/{name}": 1 / len(options) for name, options in config.space().options.items()}
    varied = [f"attribute/{name}" for name, options in config.space().options.items() if len(options) > 1]
    rows = [tag for tag in states["grouped"]["metrics"] if tag.startswith("accuracy")] + varied
    for tag in rows:
        shares = "".join(f"{states[head]['metrics'][tag]:>10.1%}" for head in heads)
        print(f"{tag:<30}{shares}" + (f"{chance[tag]:>10.1%}" if tag in chance else ""))
    print(f"{'minutes of training':<30}" + "".join(f"{states[head]['minutes']:>10.1f}" for head in heads))
    print(f"\nThe images: {OUT / 'sheet.png'}. The curves: tensorboard --logdir {OUT}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
