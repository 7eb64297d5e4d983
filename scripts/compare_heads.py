"""Train the same model with every head, for equally many steps, and say which is worth what.

    python scripts/compare_heads.py lm --data tinystories                   # hours on two cores
    python scripts/compare_heads.py lm --data FOLDER --seeds 0 1 2 --contenders flat grouped-linear
    python scripts/compare_heads.py lm --data FOLDER --max-minutes 60       # a part; call again for the rest
    python scripts/compare_heads.py images --steps 1200                     # the 184,320 classes of shapes
    python scripts/compare_heads.py images --shuffled-labels --steps 480    # nothing known of the labels
    python scripts/compare_heads.py lm --quick                              # under two minutes
    python scripts/compare_heads.py lm --redraw                             # only the table and the figure

Each model is a run of `train_lm` or `train_classifier` in --runs, to be watched in TensorBoard; a run that
was stopped is resumed. The record is --out/heads_lm.csv or heads_images.csv, a row for each contender, seed
and settings; what is there is not trained again. Table and figure are made from it after every run. With
--shuffled-labels the record is heads_shuffled.csv: every contender at several learning rates, chosen by
validation images and scored by test images, for equally many images and for equal CPU time.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import tyro

from scripts.common import shuffled
from scripts.common.command import run_script, say
from scripts.common.contenders import COMPARISONS, IMAGES_RECIPE, Comparison, lm_recipe, lm_settings
from scripts.common.jobs import Contender, Data, Job, by_definition, record_of_runs
from scripts.common.lm_models import Shape
from scripts.common.pages import write_figure, write_page
from scripts.common.records import Key, lock_of
from scripts.common.runs import RunFlags, Train, require_rows, run_all, train_in_fork, train_in_new_process
from scripts.reports import shuffled_figure, shuffled_page
from scripts.reports.heads_figure import draw
from scripts.reports.heads_page import document
from shapesgen.attributes import AttributeSpace
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, flag, positive
from sqrtvocab.help import answer_help_of

QUICK_SPACE = (
    "pattern=solid,striped",
    "rotation=0",
    "size=tiny,huge",
    "texture=none",
    "opacity=1.0",
    "border=solid",
)


@dataclass(frozen=True)
class CompareFlags(RunFlags):
    """What both comparisons are told."""

    comparison: ClassVar[Comparison]
    contenders: tuple[str, ...] = ()
    """Which of them, in this order; by default all that are listed, the cheap ones first. Any other
    registered head can be named, too: it is trained with its defaults."""
    shared: bool = False
    """Other work shares the cores: keep the losses of these runs, leave their seconds out."""

    @property
    def known(self) -> dict[str, Contender]:
        """All that can be named."""
        return self.comparison.contenders

    def __post_init__(self) -> None:
        known = self.known
        problems = [
            f"--contenders {name}: expected some of {', '.join(known)}"
            for name in self.contenders
            if name not in known
        ]
        if problems := [*problems, *self.problems()]:
            raise UserError("; ".join(problems))


@dataclass(frozen=True)
class LmFlags(CompareFlags):
    """Compare the heads on text: a small GPT-2 with a vocabulary of 50,257 tokens."""

    comparison = COMPARISONS["lm"]
    data: str | None = None
    """As `train_lm --data`, but not auto."""
    tokenizer: str = "gpt2"
    """gpt2, or train:N for a vocabulary whose every token occurs in the text."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """As `train_lm --optimizer`; sgd without weight decay, and with a --lr of its own size."""
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

    def problems(self) -> list[str]:
        sizes = ("hidden_size", "num_layers", "num_attention_heads", "seq_len", "batch_size")
        found = at_least(self, 1, "steps", *sizes, "eval_tokens") + positive(self, "lr")
        if self.tokenizer != "gpt2" and not self.tokenizer.startswith("train:"):
            found.append(f"--tokenizer {self.tokenizer}: expected gpt2 or train:N")  # a path is no definition
        return super().problems() + found + self.data_problems(self.data)

    def settings(self) -> tuple[str, ...]:
        """The flags of `train_lm` that all contenders share."""
        shape = Shape(
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_attention_heads=self.num_attention_heads,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
        )
        steps, eval_tokens = self.steps, self.eval_tokens
        if self.quick:
            shape = Shape(hidden_size=32, num_layers=2, num_attention_heads=2, seq_len=64, batch_size=4)
            steps, eval_tokens = 8, 2_048
        settings = lm_settings(shape, steps, min(100, steps // 4), eval_tokens)
        return (*settings.split(), *lm_recipe(self.lr, self.tokenizer, self.optimizer).split())

    def text(self) -> Data:
        """What is trained on."""
        return Data.of("stories:200" if self.quick else str(self.data))


@dataclass(frozen=True)
class ImageFlags(CompareFlags):
    """Compare the heads on images: the paper's CNN and its 184,320 classes of drawn shapes."""

    comparison = COMPARISONS["images"]
    only: tuple[str, ...] = ()
    """As `train_classifier --only`, several at once: --only shape=circle,star opacity=1.0"""
    steps: int = 1200
    """Optimiser steps of each run; the learning rate falls to zero over them."""
    batch_size: int = 64
    """Images of a step."""
    eval_images: int = 5000
    """Validation images, scored once at the end."""
    shuffled_labels: bool = False
    """Compare what is there for labels that tell nothing, each at several learning rates."""
    rates: tuple[float, ...] = (0.0003, 0.001, 0.003)
    """With --shuffled-labels: the learning rates to choose from."""
    image_size: int = 100
    """With --shuffled-labels: side of the images."""
    backbone: str = "cnn"
    """With --shuffled-labels: as `train_classifier --backbone`."""

    @property
    def known(self) -> dict[str, Contender]:
        if not self.shuffled_labels:
            return super().known
        try:
            return shuffled.contenders(AttributeSpace.parse_only(self.chosen_only).num_classes)
        except ValueError:  # named below
            return {}

    @property
    def chosen_only(self) -> tuple[str, ...]:
        """The classes of the comparison."""
        return QUICK_SPACE if self.quick else self.only

    def problems(self) -> list[str]:
        found = super().problems() + at_least(self, 1, "steps", "batch_size", "eval_images", "image_size")
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            found.append("--rates must be at least one number, all positive and finite")
        given = {"rates", "image_size", "backbone"}
        changed = [field for field in dataclasses.fields(self) if field.name in given]
        if not self.shuffled_labels and (
            others := [flag(field.name) for field in changed if getattr(self, field.name) != field.default]
        ):
            found.append(f"{', '.join(others)}: for --shuffled-labels only")
        try:
            AttributeSpace.parse_only(self.only)
        except ValueError as error:
            found.append(f"--only: {error}")
        return found

    def settings(self) -> tuple[str, ...]:
        """The flags of `train_classifier` that all contenders share."""
        only = self.chosen_only
        steps, batch, images = (12, 16, 96) if self.quick else (self.steps, self.batch_size, self.eval_images)
        chosen = [part for option in only for part in ("--only", option)]
        text = f"--batch-size {batch} --accumulate 1 --max-steps {steps} --epochs 1000"
        text += f" --eval-every {steps} --eval-images {images}"
        if not self.shuffled_labels:
            return (*chosen, *f"{text} --lr 0.001 {IMAGES_RECIPE}".split())
        size = 32 if self.quick else self.image_size
        more = f"--image-size {size} --backbone {self.backbone} --workers 0"
        return (*chosen, *f"{text} {IMAGES_RECIPE} {more}".split())

    def text(self) -> None:
        """No text."""


def plan(config: LmFlags | ImageFlags, known: set[Key]) -> list[Job]:
    """The runs that the record lacks, seed by seed, each after the one whose embeddings it needs."""
    comparison, settings = config.comparison, config.settings()
    steps = int(settings[settings.index("--max-steps") + 1])

    def job_of(name: str, seed: int) -> Job:
        contender = comparison.contenders[name]
        source = job_of(contender.embeddings_of, seed) if contender.embeddings_of else None
        made_of = (comparison.trainer, name, contender, seed, settings, steps, config.runs)
        return Job(*made_of, data=config.text(), source=source)

    default: Sequence[str] = comparison.quick if config.quick else tuple(comparison.listed)
    jobs: list[Job] = []
    for seed in dict.fromkeys(config.seeds):
        for name in dict.fromkeys(config.contenders or default):
            job = job_of(name, seed)
            if job.key in known:
                continue
            if job.source is not None and not job.source.is_finished():
                jobs.append(job.source)
            jobs.append(job)
    return list(dict.fromkeys(jobs))  # one named later may be there already, for its embeddings


def main_shuffled(
    config: ImageFlags, train: Train = train_in_fork, score: Train = shuffled.score_in_fork
) -> None:
    """The same for labels that tell nothing: equal images at all rates, then equal CPU time at the best."""
    out = config.folder()
    page, figure = out / "heads_shuffled.md", out / "heads_shuffled.png"
    record = shuffled.record_of_scores(out / "heads_shuffled.csv")

    def report() -> None:
        if rows := record.rows():
            with lock_of(page):
                write_page(page, shuffled_page.document(rows, figure.name))
                write_figure(figure, shuffled_figure.draw(rows))

    def lacking(jobs: Sequence[shuffled.ScoredJob]) -> list[shuffled.ScoredJob]:
        return [job for job in jobs if job.key not in record.known()]

    if config.redraw:
        if not record.rows():
            raise UserError(f"--redraw: no row in {record.path}; --out names the folder of another record")
    else:
        chosen = {name: config.known[name] for name in config.contenders or config.known}
        settings = config.settings()
        images = int(settings[settings.index("--eval-images") + 1])
        jobs = shuffled.equal_images(chosen, config.rates, config.seeds, settings, config.runs, images)
        began, limit = time.monotonic(), config.max_minutes
        say(f"runs of equal images to do: {len(lacking(jobs))} of {len(jobs)}")
        step = shuffled.scoring(train, score)
        run_all(lacking(jobs), record, config.threads, limit, report, config.shared, step)
        longer = lacking(shuffled.equal_seconds(jobs, record.rows()))
        say(f"runs of equal CPU time to do: {len(longer)}")
        left = None if limit is None else limit - (time.monotonic() - began) / 60
        if left is None or left > 0:
            run_all(longer, record, config.threads, left, report, config.shared, step)
    report()
    print(f"{page}, {figure}, {record.path}")


def main(config: LmFlags | ImageFlags, train: Train = train_in_new_process) -> None:
    """Train, tabulate, draw. A head that only this process has registered needs `train_in_this_process`."""
    if isinstance(config, ImageFlags) and config.shuffled_labels:
        main_shuffled(config)
        return
    comparison = config.comparison
    out = config.folder()
    page, figure = out / f"heads_{comparison.name}.md", out / f"heads_{comparison.name}.png"
    record = record_of_runs(out / f"heads_{comparison.name}.csv")

    def report() -> None:
        now, older = by_definition(record.rows(), comparison.contenders)
        if not now:
            return
        with lock_of(page):  # another part of the comparison may report, too
            write_page(page, document(now, comparison, figure.name, older))
            write_figure(figure, draw(now, comparison))

    if config.redraw:
        require_rows(record, comparison.contenders)
    else:
        jobs = plan(config, record.known())
        say(f"runs to do: {len(jobs)}; watch them with: tensorboard --logdir {config.runs}")
        run_all(jobs, record, config.threads, config.max_minutes, report, config.shared, train)
    report()
    print(f"{page}, {figure}, {record.path}")


def read() -> LmFlags | ImageFlags:
    """The flags of either comparison."""
    kinds: dict[str, Callable[..., LmFlags | ImageFlags]] = {"lm": LmFlags, "images": ImageFlags}
    answer_help_of(kinds, "python scripts/compare_heads.py", __doc__ or "")
    return tyro.extras.subcommand_cli_from_dict(kinds)


if __name__ == "__main__":
    raise SystemExit(run_script(main, read))
