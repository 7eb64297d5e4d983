"""The paper's classification figures: accuracies and loss of runs, against minutes or images seen.

    python scripts/figure_classification.py runs/classifier-*
    python scripts/figure_classification.py RUN RUN --out docs/results/classification_4608.png
    python scripts/figure_classification.py --quick        # of two tiny runs, trained for it

Reads `metrics.jsonl` of every run folder. Minutes are minutes of training, evaluations left out.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from scripts.common.command import QUICK, RESULTS, make_folder, read_flags, run_script
from scripts.common.pages import write_csv, write_figure, write_page
from scripts.common.runs import launch
from scripts.reports.classification import Run, curves_of, draw, pages
from sqrtvocab.errors import RunError, UserError


@dataclass(frozen=True)
class Config:
    """Draw the curves of training runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders of train_classifier."""
    out: Path | None = None
    """Picture to write (.png); a table (.md) and the curves (.csv) of the same name go beside it.
    docs/results/classification.png by default, runs/quick/classification.png with --quick."""
    against: tuple[Literal["images", "minutes"], ...] = ("minutes",)
    """What to draw against: two panels each. Minutes mean nothing if a run was paused."""
    quick: bool = False
    """Train two tiny models for some seconds and draw them."""

    def __post_init__(self) -> None:
        problems = []
        if self.quick == bool(self.runs):
            problems.append("name at least one run folder of train_classifier, or --quick")
        if self.out is not None and self.out.suffix != ".png":
            problems.append(f"--out {self.out}: the picture is a .png")
        if not self.against:
            problems.append("--against: images, minutes or both")
        if problems:
            raise UserError("; ".join(problems))


def tiny_runs() -> tuple[Path, ...]:
    """Two runs of some seconds, trained anew."""
    runs = []
    for head in ("grouped", "flat"):
        run = QUICK / "classification" / head
        shutil.rmtree(run, ignore_errors=True)
        length = "--batch-size 16 --max-steps 6 --eval-every 2 --eval-images 64"
        flags = [*f"--preset quickstart --head {head} {length}".split(), "--out", str(run)]
        if code := launch(["-m", "classifier.train", *flags], threads=1):
            raise RunError(f"{run}: train_classifier ended with exit code {code}")
        runs.append(run)
    return tuple(runs)


def main(config: Config) -> None:
    """Read, draw, tabulate."""
    runs = [Run.open(folder) for folder in (tiny_runs() if config.quick else config.runs)]
    for run in runs:
        if run.classes != runs[0].classes:
            raise UserError(
                f"{run.folder}: other classes than those of {runs[0].folder} (--only or --rotation-cue); "
                "their accuracies do not compare, so draw them apart"
            )
    out = config.out or (QUICK if config.quick else RESULTS) / "classification.png"
    make_folder(out.parent)
    write_figure(out, draw(curves_of(runs), config.against))
    lines = [{"run": title, **line} for title, evaluations in curves_of(runs).items() for line in evaluations]
    write_csv(out.with_suffix(".csv"), lines)
    write_page(out.with_suffix(".md"), *pages(runs, config.against, out.name))
    print(out.with_suffix(".md"))


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
