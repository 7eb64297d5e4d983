"""The paper's classification figures: accuracies and loss of runs, against images seen and minutes.

    python scripts/figure_classification.py runs/classifier-* --out docs/results/classification.png

Reads `metrics.jsonl` of every run folder. Minutes are minutes of training, evaluations left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sqrtvocab.training import UserError, exit_code, read_config, read_metrics

PANELS = {
    "accuracy/overall": "validation accuracy",
    "accuracy/group": "validation group accuracy",
    "loss/validation": "validation loss (nats)",
    "loss/train": "training loss (nats)",
}
AXES = {"images": "images seen", "minutes": "minutes of training"}


@dataclass
class Args:
    """Draw the curves of training runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders of train_classifier."""
    out: Path = Path("classification.png")
    """Picture to write (any format of matplotlib)."""


def label_of(run: Path) -> str:
    """What tells a run from the others: head, grouping, groups."""
    config = read_config(run)
    if config["head"] not in ("grouped", "grouped-linear"):
        return config["head"]
    modulation = f" {config['modulation']}" if config.get("modulation") else ""
    return f"{config['head']}{modulation}, {config['grouping']} (G = {config['groups']})"


def draw(runs: tuple[Path, ...]) -> Figure:
    """A row of panels for each axis, a line for each run; the ceiling dotted once a run comes near it."""
    figure = Figure(figsize=(4.2 * len(PANELS), 3.4 * len(AXES)), layout="constrained")
    grid = figure.subplots(len(AXES), len(PANELS), squeeze=False)
    labels = [label_of(run) for run in runs]
    if len(set(labels)) < len(labels):  # the same settings twice: then the folders tell them apart
        labels = [run.name for run in runs]
    for run, label in zip(runs, labels, strict=True):
        records = read_metrics(run / "metrics.jsonl")
        for (axis, axis_label), row in zip(AXES.items(), grid, strict=True):
            for (tag, title), panel in zip(PANELS.items(), row, strict=True):
                points = [(record[axis], record[tag]) for record in records if tag in record]
                panel.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
                panel.set(xlabel=axis_label, title=title)
                panel.grid(alpha=0.3)
                if tag.startswith("accuracy"):
                    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        ceiling = next(record["accuracy/ceiling"] for record in records if "accuracy/ceiling" in record)
        if max(record.get("accuracy/overall", 0.0) for record in records) > ceiling / 2:
            for row in grid:
                row[0].axhline(ceiling, color="grey", linestyle=":", linewidth=1)
    grid[0][0].legend(fontsize=8)
    return figure


def main(args: Args) -> None:
    if not args.runs:
        raise UserError("name at least one run folder of train_classifier")
    for run in args.runs:
        if (
            not read_config(run)
            or not (run / "metrics.jsonl").is_file()
            or not any("accuracy/overall" in record for record in read_metrics(run / "metrics.jsonl"))
        ):
            raise UserError(f"{run}: no run of train_classifier with an evaluation to draw")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(args.runs).savefig(args.out, dpi=110)
    print(args.out)


if __name__ == "__main__":
    arguments = tyro.cli(Args)
    raise SystemExit(exit_code("figure_classification", lambda: main(arguments)))
