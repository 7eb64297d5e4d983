"""The paper's classification figures: accuracies and loss of runs, against images seen and minutes.

    python scripts/figure_classification.py runs/classifier-*
    python scripts/figure_classification.py RUN RUN --out docs/results/classification_4608.png
    python scripts/figure_classification.py --quick        # of two tiny runs, trained for it

Reads `metrics.jsonl` of every run folder. Minutes are minutes of training, evaluations left out.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from records import launch
from results import QUICK, command, folder, refuse, shown_path, table, write_csv, write_figure, write_page

from classifier.config import TrainConfig
from classifier.presets import PRESETS
from sqrtvocab.flags import one_line_errors

# torch and matplotlib are imported where they are used: --help must not wait for them.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders of train_classifier."""
    out: Path = Path("docs/results/classification.png")
    """Picture to write (.png); a table (.md) and the curves (.csv) of the same name go beside it."""
    against: tuple[Literal["images", "minutes"], ...] = ("images", "minutes")
    """What to draw against: a row of panels each. Minutes mean nothing if a run was paused."""
    quick: bool = False
    """Train two tiny models for some seconds and draw them, into runs/quick."""


def settings_of(run: Path) -> dict[str, Any]:
    """What `config.json` says."""
    from sqrtvocab.training import read_config

    return read_config(run)


def records_of(run: Path) -> list[dict[str, Any]]:
    """All lines of `metrics.jsonl`."""
    from sqrtvocab.training import read_metrics

    return read_metrics(run / "metrics.jsonl")


def label_of(run: Path) -> str:
    """What tells a run from the others: head, grouping, groups."""
    config = settings_of(run)
    if not config["head"].startswith("grouped"):
        return config["head"]
    modulation = f" {config['modulation']}" if config.get("modulation") else ""
    rank = f" rank {config['rank']}" if config.get("rank") else ""
    return f"{config['head']}{modulation}{rank}, {config['grouping']} (G = {config['groups']})"


def labels_of(runs: tuple[Path, ...]) -> list[str]:
    """A name for each run."""
    labels = [label_of(run) for run in runs]
    # The same settings twice: then the folders tell them apart.
    return labels if len(set(labels)) == len(labels) else [run.name for run in runs]


def draw(runs: tuple[Path, ...], labels: list[str], against: tuple[str, ...]) -> Figure:
    """A row of panels for each axis, a line for each run; the ceiling dotted once a run comes near it."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    axes = {axis: AXES[axis] for axis in against}
    figure = Figure(figsize=(4.2 * len(PANELS), 3.4 * len(axes)), layout="constrained")
    grid = figure.subplots(len(axes), len(PANELS), squeeze=False)
    for run, label in zip(runs, labels, strict=True):
        records = records_of(run)
        for (axis, axis_label), row in zip(axes.items(), grid, strict=True):
            for (tag, title), panel in zip(PANELS.items(), row, strict=True):
                points = [(record[axis], record[tag]) for record in records if tag in record]
                panel.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
                panel.set(xlabel=axis_label, title=title)
                panel.xaxis.set_major_locator(MaxNLocator(6))
                panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
                panel.grid(alpha=0.3)
                if tag.startswith("accuracy"):
                    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        ceiling = next(record["accuracy/ceiling"] for record in records if "accuracy/ceiling" in record)
        if max(record.get("accuracy/overall", 0.0) for record in records) > ceiling / 2:
            for row in grid:
                row[0].axhline(ceiling, color="grey", linestyle=":", linewidth=1)
    grid[0][0].legend(fontsize=8)
    return figure


def command_of(run: Path) -> str:
    """The command that made a run: its flags that are not the default."""
    settings = settings_of(run)
    config, usual = TrainConfig.from_json(settings), PRESETS[settings["preset"]]
    words = ["train_classifier"]
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), "--" + field.name.replace("_", "-")
        if field.name in ("out", "resume") or value == getattr(usual, field.name):
            continue
        if isinstance(value, bool):
            words.append(name if value else name.replace("--", "--no-"))
        else:
            words += [
                part
                for each in (value if isinstance(value, tuple) else [value])
                for part in (name, shown_path(each) if isinstance(each, Path) else str(each))
            ]
    return shlex.join([*words, "--out", shown_path(run)])


def evaluations(run: Path) -> list[dict[str, Any]]:
    """What was measured on validation images, in the order of the steps."""
    return [record for record in records_of(run) if "accuracy/overall" in record]


def about_groups(runs: tuple[Path, ...]) -> str:
    """Whose groups the group accuracy is about."""
    configs = [settings_of(run) for run in runs]
    used = {config["grouping"] for config in configs if not config["head"].startswith("grouped")}
    if not used:
        return "Groups are each head's own."
    return (
        f"Groups are each head's own; a head without groups is scored on those of its --grouping "
        f"({', '.join(sorted(used))})."
    )


def page(runs: tuple[Path, ...], labels: list[str], args: Args) -> list[str]:
    """The Markdown: where each run ended."""
    rows, attributes = [], []
    timed = "minutes" in args.against
    for run, label in zip(runs, labels, strict=True):
        last = evaluations(run)[-1]
        minutes = [f"{last['minutes']:.1f}"] if timed else []
        rows.append(
            [label, f"{last['images']:,}", *minutes, f"{last['loss/validation']:.3f}"]
            + [f"{last[f'accuracy/{name}']:.1%}" for name in ("overall", "top5", "group", "ceiling")]
        )
        attributes.append([label, *(f"{last[name]:.0%}" for name in last if name.startswith("attribute/"))])
    names = [
        name.removeprefix("attribute/") for name in evaluations(runs[0])[-1] if name.startswith("attribute/")
    ]
    heads = ["head", "images seen", *(["minutes"] if timed else [])]
    heads += ["validation loss", "accuracy", "top 5", "group", "ceiling"]
    classes = settings_of(runs[0])["num_classes"]
    from sqrtvocab.measure.machine import describe_machine

    return [
        f"# Learning {classes:,} classes",
        f"The paper's CNN on drawn shapes, {classes:,} classes. "
        + ("Minutes are minutes of training, evaluations left out. " if timed else "")
        + "The curves are in the CSV file of the same name. "
        + about_groups(runs),
        f"![Accuracy and loss against {' and '.join(args.against)}]({args.out.name})",
        table(heads, rows),
        "Share of validation images whose attribute is right:",
        table(["head", *names], attributes),
        "```bash\n" + "\n".join([*(command_of(run) for run in runs), command()]) + "\n```",
        f"Drawn on {describe_machine()}.",
    ]


def class_space(run: Path) -> object:
    """Which classes a run learnt: the options of every attribute, and whether rotations can be seen."""
    from sqrtvocab.training import UserError

    try:
        config = TrainConfig.from_json(settings_of(run))
    except UserError as error:
        raise UserError(f"{run}: no run of train_classifier: {error}") from error
    return config.space(), config.rotation_cue


def tiny_runs() -> tuple[Path, ...]:
    """Two runs of some seconds, trained anew."""
    runs = []
    for head in ("grouped", "flat"):
        run = QUICK / "classification" / head
        shutil.rmtree(run, ignore_errors=True)
        text = (
            f"--preset quickstart --head {head} --batch-size 16 --max-steps 6 --eval-every 2 --eval-images 64"
        )
        if code := launch(["-m", "classifier.train", *text.split(), "--out", str(run)], threads=1):
            raise SystemExit(code)
        runs.append(run)
    return tuple(runs)


def main(args: Args) -> None:
    from sqrtvocab.training import UserError

    if args.quick:
        args = dataclasses.replace(args, runs=tiny_runs())
    for run in args.runs:
        if not settings_of(run) or not (run / "metrics.jsonl").is_file() or not evaluations(run):
            raise UserError(f"{run}: no run of train_classifier with an evaluation to draw")
    spaces = {run: class_space(run) for run in args.runs}
    for run, space in spaces.items():
        if space != spaces[args.runs[0]]:
            raise UserError(
                f"{run}: other classes than those of {args.runs[0]} (--only or --rotation-cue); their "
                "accuracies do not compare, so draw them apart"
            )
    folder(args.out.parent)
    labels = labels_of(args.runs)
    rows = [
        {"run": label, **row}
        for run, label in zip(args.runs, labels, strict=True)
        for row in evaluations(run)
    ]
    write_figure(args.out, draw(args.runs, labels, args.against))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(args.out.with_suffix(".csv"), [{name: row.get(name, "") for name in columns} for row in rows])
    write_page(args.out.with_suffix(".md"), *page(args.runs, labels, args))
    print(args.out.with_suffix(".md"))


if __name__ == "__main__":
    with one_line_errors("figure_classification"):
        arguments = tyro.cli(Args, description=__doc__)
    if arguments.quick == bool(arguments.runs):
        refuse("name at least one run folder of train_classifier, or --quick")
    if arguments.quick and arguments.out == Args.out:
        arguments = dataclasses.replace(arguments, out=QUICK / "classification.png")
    if arguments.out.suffix != ".png":
        refuse(f"--out {arguments.out}: the picture is a .png")
    if not arguments.against:
        refuse("--against: images, minutes or both")
    from sqrtvocab.training import exit_code

    raise SystemExit(exit_code("figure_classification", lambda: main(arguments)))
