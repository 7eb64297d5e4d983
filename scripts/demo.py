"""The image experiment in four minutes: the same CNN with the grouped head and with the flat head.

    python scripts/demo.py                 # writes runs/demo

Draws a sheet of images, trains both heads on the quickstart's sub-space, and prints what each of them learnt.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from classifier.config import TrainConfig
from classifier.presets import PRESETS

OUT = Path("runs/demo")


def run(*command: object) -> None:
    """Run a command of this project; the demo ends if it fails."""
    print("\n$", *command, flush=True)
    folder = Path(sys.executable).parent
    result = subprocess.run([folder / str(command[0]), *map(str, command[1:])], check=False)
    if result.returncode:
        raise SystemExit(result.returncode)


def main() -> None:
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir(parents=True)
    run("shapesgen", "preview", "--out", OUT / "sheet.png")
    heads = ("grouped", "flat")
    for head in heads:
        run("train_classifier", "--preset", "quickstart", "--head", head, "--out", OUT / head)

    config: TrainConfig = PRESETS["quickstart"]
    states = {head: json.loads((OUT / head / "last" / "state.json").read_text("utf-8")) for head in heads}
    print(
        f"\n{config.space().num_classes:,} classes, validation images, after {config.max_steps} steps each:\n"
    )
    print(f"{'':<24}" + "".join(f"{head:>10}" for head in heads) + f"{'chance':>10}")
    chance = {"accuracy/overall": 1 / config.space().num_classes}
    rows = [tag for tag in states["grouped"]["metrics"] if tag.startswith(("accuracy", "attribute"))]
    for tag in rows:
        shares = "".join(f"{states[head]['metrics'][tag]:>10.1%}" for head in heads)
        print(f"{tag:<24}{shares}" + (f"{chance[tag]:>10.1%}" if tag in chance else ""))
    print(f"{'minutes of training':<24}" + "".join(f"{states[head]['minutes']:>10.1f}" for head in heads))
    print(f"\nThe images: {OUT / 'sheet.png'}. The curves: tensorboard --logdir {OUT}")


if __name__ == "__main__":
    main()
