"""The page and the figure of `figure_classification`: what runs of `train_classifier` learnt, and when."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classifier.config import TrainConfig
from classifier.presets import PRESETS
from scripts.common.command import command, shown_path
from scripts.common.pages import WIDTH, table
from sqrtvocab.errors import UserError
from sqrtvocab.flags import flag
from sqrtvocab.heads.registry import HEADS

# torch and matplotlib are imported where they are used: --help must not wait for them.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[Mapping[str, Any]]]  # a run -> its evaluations
AXES = {"images": "images seen", "minutes": "minutes of training"}


@dataclass(frozen=True)
class Run:
    """What a run folder says."""

    folder: Path
    settings: dict[str, Any]  # of config.json
    config: TrainConfig
    metrics: list[dict[str, Any]]  # lines of metrics.jsonl

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read a run folder.

        Raises:
            UserError: it is none of train_classifier, or has not been evaluated yet.
        """
        from sqrtvocab.training import read_config, read_metrics

        settings, path = read_config(folder), folder / "metrics.jsonl"
        metrics = read_metrics(path) if path.is_file() else []
        if not any("accuracy/overall" in line for line in metrics):
            raise UserError(f"{folder}: no run of train_classifier with an evaluation to draw")
        try:
            config = TrainConfig.from_json(settings)
        except UserError as error:
            raise UserError(f"{folder}: no run of train_classifier: {error}") from error
        return cls(folder, settings, config, metrics)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """What was measured on validation images, in the order of the steps."""
        return [line for line in self.metrics if "accuracy/overall" in line]

    @property
    def has_groups(self) -> bool:
        """Whether the head has groups of its own."""
        return HEADS[self.config.head].has_groups

    @property
    def classes(self) -> object:
        """Which classes it learnt: the options of every attribute, and whether rotations can be seen."""
        return self.config.space(), self.config.rotation_cue

    @property
    def title(self) -> str:
        """Head, grouping, groups."""
        if not self.has_groups:
            return self.config.head
        modulation = f" {self.config.modulation}" if self.config.modulation else ""
        rank = f" rank {self.config.rank}" if self.config.rank else ""
        return f"{self.config.head}{modulation}{rank}, {self.config.grouping} (G = {self.settings['groups']})"

    def command(self) -> str:
        """The command that made it: its flags that are not the default."""
        usual, words = PRESETS[self.settings["preset"]], ["train_classifier"]
        for field in dataclasses.fields(self.config):
            value, name = getattr(self.config, field.name), flag(field.name)
            if field.name in ("out", "resume") or value == getattr(usual, field.name):
                continue
            if isinstance(value, bool):
                words.append(name if value else name.replace("--", "--no-"))
                continue
            for each in value if isinstance(value, tuple) else [value]:
                words += [name, shown_path(each) if isinstance(each, Path) else str(each)]
        return shlex.join([*words, "--out", shown_path(self.folder)])


def titles_of(runs: Sequence[Run]) -> list[str]:
    """What tells the runs apart: their settings, or their folders if these are the same."""
    titles = [run.title for run in runs]
    return titles if len(set(titles)) == len(titles) else [run.folder.name for run in runs]


def curves_of(runs: Sequence[Run]) -> Curves:
    """The evaluations of each run, under what tells it apart."""
    return {title: run.evaluations for run, title in zip(runs, titles_of(runs), strict=True)}


def draw(curves: Curves, against: Sequence[str]) -> Figure:
    """Two panels for each axis: accuracy with that of the groups and the ceiling, and loss."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    figure = Figure(figsize=(WIDTH, 3.6 * len(against)), layout="constrained")
    ceiling = max(float(line["accuracy/ceiling"]) for lines in curves.values() for line in lines)
    for axis, (left, right) in zip(against, figure.subplots(len(against), 2, squeeze=False), strict=True):
        for title, lines in curves.items():
            x = [float(line[axis]) for line in lines]
            overall, group, loss = (
                [float(line[tag]) for line in lines]
                for tag in ("accuracy/overall", "accuracy/group", "loss/validation")
            )
            colour = left.plot(x, overall, linewidth=1.8, label=title)[0].get_color()
            left.plot(x, group, linewidth=1.2, linestyle="--", color=colour)
            right.plot(x, loss, linewidth=1.8, color=colour)
        left.plot([], [], linewidth=1.2, linestyle="--", color="0.4", label="its group right")
        left.axhline(ceiling, color="0.4", linestyle=":", linewidth=1.2)
        left.text(
            0.02, ceiling, f"ceiling {ceiling:.0%}", transform=left.get_yaxis_transform(), va="bottom",
            color="0.3", fontsize=9,
        )  # fmt: skip
        left.set(title="validation accuracy", ylim=(-0.02, 1.1 * max(ceiling, 0.01)))
        left.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.set(title="validation loss (nats)")
        right.set_ylim(bottom=0)
        for panel in (left, right):
            panel.set_xlabel(AXES[axis])
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
            panel.grid(alpha=0.3)
            panel.tick_params(labelsize=9)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def pages(runs: Sequence[Run], against: Sequence[str], picture: str) -> list[str]:
    """The Markdown, part by part: where each run ended, and the commands."""
    from sqrtvocab.measure.machine import describe_machine

    rows, attributes = [], []
    timed = "minutes" in against
    for run, title in zip(runs, titles_of(runs), strict=True):
        last = run.evaluations[-1]
        minutes = [f"{last['minutes']:.1f}"] if timed else []
        rows.append(
            [title, f"{last['images']:,}", *minutes, f"{last['loss/validation']:.3f}"]
            + [f"{last[f'accuracy/{name}']:.1%}" for name in ("overall", "top5", "group", "ceiling")]
        )
        attributes.append([title, *(f"{last[name]:.0%}" for name in last if name.startswith("attribute/"))])
    tags = [tag for tag in runs[0].evaluations[-1] if tag.startswith("attribute/")]
    heads = ["head", "images seen", *(["minutes"] if timed else [])]
    heads += ["validation loss", "accuracy", "top 5", "group", "ceiling"]
    classes = runs[0].settings["num_classes"]
    return [
        f"# Learning {classes:,} classes",
        f"The paper's CNN on drawn shapes, {classes:,} classes. "
        + ("Minutes are minutes of training, evaluations left out. " if timed else "")
        + f"The curves are in the CSV file of the same name. {about_groups(runs)}",
        f"![Accuracy and loss against {' and '.join(against)}]({picture})",
        table(heads, rows),
        "Share of validation images whose attribute is right:",
        table(["head", *(tag.removeprefix("attribute/") for tag in tags)], attributes),
        "```bash\n" + "\n".join([*(run.command() for run in runs), command()]) + "\n```",
        f"Drawn on {describe_machine()}.",
    ]


def about_groups(runs: Sequence[Run]) -> str:
    """Whose groups the group accuracy is about."""
    used = sorted({run.config.grouping for run in runs if not run.has_groups})
    if not used:
        return "Groups are each head's own."
    return (
        "Groups are each head's own; a head without groups is scored on those of its --grouping "
        f"({', '.join(used)})."
    )
