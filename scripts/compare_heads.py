"""Train the same model with every head, for equally many steps, and say which is worth what.

    python scripts/compare_heads.py lm --data tinystories                   # hours on two cores
    python scripts/compare_heads.py lm --data FOLDER --seeds 0 1 2 --contenders flat grouped-linear
    python scripts/compare_heads.py lm --data FOLDER --max-minutes 60       # a part; call again for the rest
    python scripts/compare_heads.py images --steps 1200                     # the 184,320 classes of shapes
    python scripts/compare_heads.py lm --quick                              # under two minutes
    python scripts/compare_heads.py lm --redraw                             # only the table and the figure

Each model is a run of `train_lm` or `train_classifier` in --runs, to be watched in TensorBoard; a run that
was stopped is resumed. The record is --out/heads_lm.csv or heads_images.csv, a row for each contender, seed
and settings; what is there is not trained again. Table and figure are made from it after every run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from contenders import COMPARISONS, IMAGES, IMAGES_RECIPE, LM, Comparison, lm_recipe
from records import (
    SHARED,
    Contender,
    Data,
    Job,
    Mean,
    Row,
    ScriptError,
    by_definition,
    exit_code,
    key_of,
    paired,
    read_rows,
    run_all,
    say,
)
from results import (
    QUICK,
    RESULTS,
    command_with,
    folder,
    table,
    values_of,
    write_figure,
    write_page,
)  # fmt: skip

from sqrtvocab.flags import one_line_errors

QUICK_SPACE = (
    "pattern=solid,striped",
    "rotation=0",
    "size=tiny,huge",
    "texture=none",
    "opacity=1.0",
    "border=solid",
)


# ---- flags ----


@dataclass(frozen=True)
class Common:
    contenders: tuple[str, ...] = ()
    """Which of them, in this order; all by default, the cheap ones first."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each contender is trained with each of them."""
    threads: int = 2
    """Torch threads of a run. Losses do not depend on it, seconds do: rows of other machines or threads are
    left out of the seconds and the figure."""
    shared: bool = False
    """Other work shares the cores: keep the losses of these runs, leave their seconds out."""
    max_minutes: float | None = None
    """Begin no further run after so many minutes; call again for the rest."""
    out: Path | None = None
    """Folder for the record, the table and the figure; docs/results by default, runs/quick with
    --quick."""
    runs: Path = Path("runs/compare")
    """Folder for the runs: tensorboard --logdir RUNS."""
    quick: bool = False
    """A tiny model on built-in data, to see everything work in under two minutes; its figures mean
    nothing."""
    redraw: bool = False
    """Train nothing: make table and figure from the record."""

    def problems(self, known: dict[str, Contender]) -> list[str]:
        found = [
            f"--contenders {name}: expected some of {', '.join(known)}"
            for name in self.contenders
            if name not in known
        ]
        if not self.seeds or min(self.seeds) < 0:
            found.append("--seeds must be at least one number, none negative")
        if self.threads < 1:
            found.append(f"--threads must be at least 1, got {self.threads}")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            found.append(f"--max-minutes must be a positive number, got {self.max_minutes}")
        return found


@dataclass(frozen=True)
class LmConfig(Common):
    """Compare the heads on text: a small GPT-2 with a vocabulary of 50,257 tokens."""

    data: str | None = None
    """As `train_lm --data`, but not auto."""
    steps: int = 400
    """Optimiser steps of each run; the learning rate falls to zero over them."""
    hidden_size: int = 128
    """Width of the hidden state."""
    num_layers: int = 8
    """Transformer blocks."""
    num_attention_heads: int = 8
    """Attention heads of a block."""
    seq_len: int = 512
    """Tokens of one sequence."""
    batch_size: int = 8
    """Sequences of a step."""
    lr: float = 1e-3
    """Peak learning rate. The best one depends on the head and on the number of steps: compare heads at
    several."""
    eval_tokens: int = 131_072
    """Validation tokens, scored once at the end."""

    def settings(self) -> tuple[str, ...]:
        """The flags of `train_lm` that all contenders share."""
        if self.quick:
            text = "--hidden-size 32 --num-layers 2 --num-attention-heads 2 --seq-len 64 --batch-size 4"
            return (*text.split(), *self._length(8, 2_048))
        shape = ("hidden_size", "num_layers", "num_attention_heads", "seq_len", "batch_size")
        values = [
            part for name in shape for part in (f"--{name.replace('_', '-')}", str(getattr(self, name)))
        ]
        return (*values, *self._length(self.steps, self.eval_tokens))

    def _length(self, steps: int, eval_tokens: int) -> tuple[str, ...]:
        # The steps are the limit, not the epochs. One evaluation, no stories: they are no part of a training.
        text = f"--max-steps {steps} --epochs 1000 --warmup-steps {min(100, steps // 4)} --eval-every {steps}"
        return tuple(f"{text} --eval-tokens {eval_tokens} --sample-every 0 {lm_recipe(self.lr)}".split())

    def text(self) -> Data:
        return Data.of("stories:200" if self.quick else str(self.data))

    def check(self) -> list[str]:
        found = self.problems(LM)
        least = (
            "steps",
            "hidden_size",
            "num_layers",
            "num_attention_heads",
            "seq_len",
            "batch_size",
            "eval_tokens",
        )
        found += [f"--{n.replace('_', '-')} must be at least 1" for n in least if getattr(self, n) < 1]
        if not 0 < self.lr < math.inf:
            found.append(f"--lr must be a positive number, got {self.lr}")
        if not (self.quick or self.redraw) and self.data in (None, "auto"):
            found.append("--data must name the text: tinystories, stories:N, a file or a folder")
        return found


@dataclass(frozen=True)
class ImagesConfig(Common):
    """Compare the heads on images: the paper's CNN and its 184,320 classes of drawn shapes."""

    only: tuple[str, ...] = field(default=())
    """As `train_classifier --only`, several at once: --only shape=circle,star opacity=1.0"""
    steps: int = 1200
    """Optimiser steps of each run; the learning rate falls to zero over them."""
    batch_size: int = 64
    """Images of a step."""
    eval_images: int = 5000
    """Validation images, scored once at the end."""

    def settings(self) -> tuple[str, ...]:
        """The flags of `train_classifier` that all contenders share."""
        only = QUICK_SPACE if self.quick else self.only
        steps, batch, images = (12, 16, 96) if self.quick else (self.steps, self.batch_size, self.eval_images)
        chosen = [part for option in only for part in ("--only", option)]
        text = f"--batch-size {batch} --accumulate 1 --max-steps {steps} --epochs 1000"
        return (*chosen, *f"{text} --eval-every {steps} --eval-images {images} {IMAGES_RECIPE}".split())

    def text(self) -> None:
        return None

    def check(self) -> list[str]:
        found = self.problems(IMAGES)
        least = ("steps", "batch_size", "eval_images")
        return found + [f"--{n.replace('_', '-')} must be at least 1" for n in least if getattr(self, n) < 1]


def plan(config: LmConfig | ImagesConfig, comparison: Comparison, rows: Sequence[Row]) -> list[Job]:
    """The runs that the record lacks, seed by seed, each after the one whose embeddings it needs."""
    settings = config.settings()
    steps = int(settings[settings.index("--max-steps") + 1])
    known = {key_of(row) for row in rows}
    jobs: list[Job] = []

    def job_of(name: str, seed: int) -> Job:
        contender = comparison.contenders[name]
        source = contender.embeddings_of
        return Job(
            comparison.trainer,
            name,
            contender,
            seed,
            settings,
            steps,
            config.runs,
            data=config.text(),
            source=None if source is None else job_of(source, seed),
        )

    for seed in dict.fromkeys(config.seeds):
        default = comparison.quick if config.quick else tuple(comparison.contenders)
        for name in dict.fromkeys(config.contenders or default):
            job = job_of(name, seed)
            if job.key in known:
                continue
            if job.source is not None and not job.source.is_finished():
                jobs.append(job.source)
            jobs.append(job)
    # A contender named later may have been put in already, for its embeddings.
    return list(dict.fromkeys(jobs))


# ---- table and figure ----


@dataclass(frozen=True)
class Entry:
    """One contender's rows with the same settings."""

    name: str
    title: str
    losses: dict[str, float]  # seed -> validation loss
    rows: list[Row]
    timed: list[Row]  # those whose seconds compare with the others'

    def mean(self, column: str) -> Mean | None:
        """Over the seeds; seconds only of the rows that compare."""
        rows = self.timed if column in ("seconds", "seconds_per_step") else self.rows
        return Mean.of([float(row[column]) for row in rows]) if rows else None


Place = tuple[str, str, str]


def place_of(row: Row) -> Place:
    """Where the seconds of a row were measured."""
    return row["machine"], row["threads"], row["torch"]


def timed_rows(rows: Sequence[Row]) -> tuple[Place, list[Row]]:
    """The place of most rows, and those of them whose seconds compare: none where other work ran beside."""
    alone = [row for row in rows if not row["machine"].endswith(SHARED)]
    places = [place_of(row) for row in alone or rows]
    place = max(dict.fromkeys(places), key=places.count)
    return place, [row for row in alone if place_of(row) == place]


def sections(
    rows: Sequence[Row], contenders: dict[str, Contender]
) -> dict[tuple[str, str], tuple[Place, list[Entry]]]:
    """Settings and bytes of the data -> the place of most of its seconds, and its contenders by loss."""
    result = {}
    for setting in dict.fromkeys((row["settings"], row["data_bytes"]) for row in rows):
        mine = [row for row in rows if (row["settings"], row["data_bytes"]) == setting]
        place, timed = timed_rows(mine)
        entries = []
        for name, own in dict.fromkeys((row["contender"], row["flags"]) for row in mine):
            chosen = [row for row in mine if (row["contender"], row["flags"]) == (name, own)]
            title = contenders[name].title if name in contenders else name
            losses = {row["seed"]: float(row["loss"]) for row in chosen}
            entries.append(Entry(name, title, losses, chosen, [row for row in chosen if row in timed]))
        result[setting] = place, sorted(entries, key=lambda entry: Mean.of(list(entry.losses.values())).value)
    return result


def document(rows: Sequence[Row], comparison: Comparison, figure: str, older: Sequence[Row] = ()) -> str:
    """The whole Markdown page; of the older rows it says only that they are there."""
    rates = "Within a section all heads share one learning rate; sections differ in it."
    if comparison.name != "lm":
        rates = "All heads share one learning rate; each may have a better one."
    lines = [
        f"# {comparison.title}",
        "",
        f"Made by the command below each table from [its record](heads_{comparison.name}.csv); then the "
        "command of each run. Validation loss in nats; ± is half of a 95 % interval over seeds (Student t), "
        "n the number of seeds. Training seconds are the time of the training loop, reading batches "
        "included; tokenising, evaluation and saving are left out. Seconds a step are the median over the "
        f"steps. {rates}",
        "",
        f"![Validation loss against seconds a step]({figure})",
    ]
    for title, lines_of_table in best_rates(rows, comparison).items():
        lines += ["", f"## Each at its best learning rate: {title}", ""]
        lines += [
            "By the mean loss over the seeds that a head has at a rate; `less its flat head` compares both "
            "at their best, paired by seed.",
            "",
            lines_of_table,
        ]
    for (setting, _), (place, entries) in sections(rows, comparison.contenders).items():
        first = entries[0].rows[0]
        lines += [
            "",
            f"## {heading(entries, comparison)}",
            "",
            f"`{setting}`, {int(first['training_items']):,} {comparison.item}s to train on. {place[0]}, "
            f"{place[1]} thread(s), torch {place[2]}.",
            "",
            results_table(entries, comparison),
        ]
        losses = {entry.name: entry.losses for entry in entries}
        found = {
            f"`{name}` less `{flat}`": paired(losses[name], losses[flat])
            for name, flat in comparison.like.items()
            if name in losses and flat in losses
        }
        shown = [f"{pair} {mean.show(3, '+')} (n = {mean.n})" for pair, mean in found.items() if mean]
        if shown:
            lines += ["", f"Like for like, paired by seed: {'; '.join(shown)}."]
        if any(row not in entry.timed for entry in entries for row in entry.rows):
            lines += [
                "",
                "Losses are of all runs; seconds are left out where other work shared a core, or on another "
                "machine.",
            ]
        command = command_with(f"scripts/compare_heads.py {comparison.name}", flags_of(entries))
        lines += ["", command, "", "```bash", f'settings="{setting}"']
        for entry in entries:
            known = comparison.contenders[entry.name]
            source = f" --embeddings RUN_OF_{known.embeddings_of}" if known.embeddings_of else ""
            lines.append(f"{comparison.program} $settings {known.flags}{source}  # {entry.name}")
        lines += ["```"]
    if older:
        names = ", ".join(sorted({f"`{row['contender']}` (`{row['flags']}`)" for row in older}))
        lines += ["", f"Left out, because the record has them by an older definition: {names}."]
    lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines)


def flags_of(entries: Sequence[Entry]) -> dict[str, Sequence[object]]:
    """The flags of this script that train what a section holds."""
    rows = [row for entry in entries for row in entry.rows]
    values = values_of(rows[0]["settings"])
    values["--steps"] = values["--max-steps"]
    text = ("--data", "--hidden-size", "--num-layers", "--num-attention-heads", "--seq-len", "--lr")
    known = [*(text if "--data" in values else ("--only",)), "--batch-size", "--steps"]
    known += ["--eval-tokens", "--eval-images"]
    seeds = sorted({int(row["seed"]) for row in rows})
    return {**{flag: values[flag] for flag in known if flag in values}, "--seeds": seeds}


def best_rates(rows: Sequence[Row], comparison: Comparison) -> dict[str, str]:
    """Where a head and the flat head to compare it with were both trained at several learning rates: what
    was trained -> a table of the heads at the best of theirs."""
    tables = {}
    for family in families_of(rows):
        losses = losses_by_rate(family)
        several = {name: by_rate for name, by_rate in losses.items() if len(by_rate) > 1}
        if not any(name in several and flat in several for name, flat in comparison.like.items()):
            continue
        best = {name: best_rate(by_rate) for name, by_rate in several.items()}
        at_best = {name: several[name][rate] for name, rate in best.items()}
        means = {name: Mean.of(list(found.values())) for name, found in at_best.items()}
        lines = []
        for name in sorted(best, key=lambda name: means[name].value):
            gap = paired(at_best[name], at_best.get(comparison.like.get(name, ""), {}))
            shown = "" if gap is None else f"{gap.show(3, '+')} (n = {gap.n})"
            tried = ", ".join(sorted(several[name], key=float))
            lines.append([f"`{name}`", best[name], tried, str(means[name].n), means[name].show(3), shown])
        head = ["", "best rate", "of", "n", "validation loss", "less its flat head"]
        tables[length_of(family[0], comparison)] = table(head, lines)
    return tables


def families_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in contender, seed and learning rate only."""
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        settings = re.sub(r" --lr \S+", "", row["settings"])
        families.setdefault((settings, row["data_bytes"]), []).append(row)
    return list(families.values())


def rate_of(row: Row) -> str:
    """The learning rate that a row's settings name; "" if they name none."""
    return values_of(row["settings"]).get("--lr", [""])[-1]


def losses_by_rate(family: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Contender -> learning rate -> seed -> validation loss."""
    losses: dict[str, dict[str, dict[str, float]]] = {}
    for row in family:
        losses.setdefault(row["contender"], {}).setdefault(rate_of(row), {})[row["seed"]] = float(row["loss"])
    return losses


def best_rate(by_rate: dict[str, dict[str, float]]) -> str:
    """The learning rate with the least mean loss over its seeds."""
    return min(by_rate, key=lambda rate: Mean.of(list(by_rate[rate].values())).value)


def results_table(entries: Sequence[Entry], comparison: Comparison) -> str:
    """The contenders by loss."""
    reference = comparison.reference
    flat = next((entry.losses for entry in entries if entry.name == reference), {})
    head = ["", "head", "n", "validation loss", f"less `{reference}`", *comparison.columns.values()]
    head += ["training s", "s a step", "peak GiB", "parameters", "of the head"]
    rows = []
    for entry in entries:
        loss = Mean.of(list(entry.losses.values()))
        difference = None if entry.name == reference else paired(entry.losses, flat)
        gap = "" if difference is None else difference.show(3, "+")
        if difference is not None and difference.n < loss.n:
            gap += f" (n = {difference.n})"
        cells = [f"`{entry.name}`", entry.title, str(loss.n), loss.show(3), gap]
        for column in comparison.columns:
            mean = entry.mean(column)
            assert mean is not None
            share = "accuracy" in column
            percent = Mean(100 * mean.value, mean.half and 100 * mean.half, mean.n)
            cells.append(f"{percent.show(1)} %" if share else mean.show(3))
        for column in ("seconds", "seconds_per_step", "peak_gib"):
            mean = entry.mean(column)
            digits = 0 if column == "seconds" and mean is not None and mean.value >= 100 else 2
            cells.append("" if mean is None else f"{mean.value:,.{digits}f}")
        cells += [f"{int(entry.rows[0][column]):,}" for column in ("parameters", "head_parameters")]
        rows.append(cells)
    return table(head, rows, left=2)


def front(points: dict[str, tuple[float, float]]) -> list[str]:
    """The names of the points (seconds, loss) that no other point beats in both, from left to right."""
    best, names = math.inf, []
    for name, (_, loss) in sorted(points.items(), key=lambda item: item[1]):
        if loss < best:
            best = loss
            names.append(name)
    return names


def draw(rows: Sequence[Row], comparison: Comparison, path: Path) -> None:
    """Validation loss at the best learning rate against seconds a step, the Pareto front as a line.

    A panel for all that differs only in the learning rate, on which the seconds do not depend. A head trained
    at one rate only, where others had several, is hollow: it may do better at another.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    parts = [family for family in families_of(rows) if timed_rows(family)[1]]
    figure = Figure(figsize=(9, (5.5 if len(parts) < 3 else 4.5) * max(1, len(parts))), layout="constrained")
    panels = figure.subplots(len(parts), squeeze=False)[:, 0] if parts else []
    named = []
    for panel, family in zip(panels, parts, strict=True):
        place, timed = timed_rows(family)
        losses = losses_by_rate(family)
        swept = max(map(len, losses.values())) > 1
        points = {}
        for name, by_rate in losses.items():
            rate = best_rate(by_rate)
            own = [row for row in timed if row["contender"] == name]
            # Those of the same runs, if they were timed: the machine may be another one on another day.
            own = [row for row in own if rate_of(row) == rate] or own
            if own:
                loss = Mean.of(list(by_rate[rate].values()))
                seconds = Mean.of([float(row["seconds_per_step"]) for row in own])
                points[name] = (seconds.value, loss.value)
                hollow = swept and len(by_rate) == 1
                bar = {"yerr": loss.half, "fmt": "o", "markersize": 5, "capsize": 2}
                panel.errorbar(*points[name], color="C0", markerfacecolor="white" if hollow else "C0", **bar)
        best = [points[name] for name in front(points)]
        panel.plot(*zip(*best, strict=True), color="C1", linewidth=1.2, zorder=0, label="Pareto front")
        panel.set_xscale("log")
        panel.margins(x=0.25, y=0.12)
        panel.xaxis.set_major_locator(ticks(*panel.get_xlim()))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter("{x:,.5g}")
        panel.set(xlabel=f"seconds a training step, median ({place[0]}, {place[1]} thread(s))")
        panel.set(ylabel="validation loss (nats)", title=length_of(family[0], comparison))
        panel.grid(alpha=0.3, which="both")
        if swept:
            panel.plot([], [], "o", color="C0", markersize=5, label="at the best learning rate of several")
            panel.plot([], [], "o", color="C0", markerfacecolor="white", markersize=5, label="at one only")
        panel.legend(fontsize=8)
        named.append(points)
    figure.draw_without_rendering()  # fixes the scales, on which the places of the labels depend
    for panel, points in zip(panels, named, strict=True):
        put_labels(panel, points)
    write_figure(path, figure)


def ticks(left: float, right: float) -> Any:
    """What to label on a logarithmic axis: on a short one 1, 2 and 5 would leave a label, or none."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if right < 3 * left:
        return MaxNLocator(6, steps=(1, 2, 5, 10), min_n_ticks=3)
    return LogLocator(subs=(1, 2, 5) if right > 10 * left else (1, 1.5, 2, 3, 5, 7))


def put_labels(panel: Any, points: dict[str, tuple[float, float]]) -> None:
    """Write each point's name beside it, on whichever side and height there is room."""
    size, scale = 8, panel.figure.dpi / 72
    places = {name: panel.transData.transform(point) / scale for name, point in points.items()}  # in points
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.values()]
    for name, (x, y) in sorted(places.items(), key=lambda item: item[1][1]):
        width, height = 0.56 * size * len(name), 1.3 * size
        shifts = [
            (side, row * height) for row in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5) for side in (6, -6 - width)
        ]
        boxes = [(x + dx, y + dy - height / 2, x + dx + width, y + dy + height / 2) for dx, dy in shifts]
        free = [i for i, box in enumerate(boxes) if not any(overlap(box, other) for other in taken)]
        chosen = free[0] if free else 0
        taken.append(boxes[chosen])
        arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": "grey"} if shifts[chosen][1] else None
        panel.annotate(
            name,
            points[name],
            shifts[chosen],
            textcoords="offset points",
            fontsize=size,
            va="center",
            arrowprops=arrow,
        )


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, bottom, right, top) share a point."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def heading(entries: Sequence[Entry], comparison: Comparison) -> str:
    """What was trained, in a few words."""
    first = entries[0].rows[0]
    rate = rate_of(first) if comparison.name == "lm" else None  # that of the images is always the same
    return length_of(first, comparison) + (f", learning rate {rate}" if rate else "")


def length_of(row: Row, comparison: Comparison) -> str:
    """How long was trained."""
    per_step = -(-int(row["items"]) // int(row["steps"]))  # the last step of an epoch may be smaller
    return f"{int(row['steps']):,} steps of {per_step:,} {comparison.item}s"


def main(config: LmConfig | ImagesConfig) -> None:
    comparison = COMPARISONS["lm" if isinstance(config, LmConfig) else "images"]
    if problems := config.check():
        raise ScriptError("; ".join(problems))
    out = config.out or (QUICK if config.quick else RESULTS)
    if not config.redraw:
        folder(out)  # now, not after hours of training
    record, page, figure = (out / f"heads_{comparison.name}.{suffix}" for suffix in ("csv", "md", "png"))

    def report(_: Job | None = None) -> None:
        now, older = by_definition(read_rows(record), comparison.contenders)
        if now:
            write_page(page, document(now, comparison, figure.name, older))
            draw(now, comparison, figure)

    rows = read_rows(record)
    if config.redraw:
        if not rows:
            raise ScriptError(f"--redraw: no row in {record}; --out names the folder of another record")
        if not by_definition(rows, comparison.contenders)[0]:
            raise ScriptError(f"--redraw: all rows in {record} are of older contenders; train anew")
        report()
    else:
        jobs = plan(config, comparison, rows)
        say(f"{len(jobs)} runs to do; watch them with: tensorboard --logdir {config.runs}")
        run_all(jobs, record, config.threads, config.max_minutes, report, config.shared)
        report()
    print(f"{page}, {figure}, {record}")


if __name__ == "__main__":
    kinds = {"lm": LmConfig, "images": ImagesConfig}
    with one_line_errors("compare_heads"):
        arguments = tyro.extras.subcommand_cli_from_dict(kinds, description=__doc__)
    raise SystemExit(exit_code("compare_heads", lambda: main(arguments)))
