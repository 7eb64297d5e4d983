"""The comparison of heads on images whose labels tell nothing: contenders, runs, scores nobody chose by."""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.common.command import values_of
from scripts.common.jobs import KEY, RESULTS, Contender, Job, rate_of, with_steps
from scripts.common.records import Key, Record, Row
from scripts.common.runs import Train, fork
from shapesgen.attributes import AttributeSpace
from sqrtvocab.atomic import write_json

SCORES = ("test_loss", "test_accuracy", "cpu_seconds")  # columns beside those of every record of runs
TEST = "eval-test.json"  # in the run folder, by eval_classifier
CPU = "cpu_seconds.json"  # the same, by `train_and_score`
NEAR = 0.2  # so near to the seconds of the reference, a run counts as of equal time
SHUFFLED = "--shuffle-labels 0 "
REFERENCE = "flat"
HASHES = 16


def record_of_scores(path: Path) -> Record:
    """A record with a row for each finished and scored run."""
    return Record(path, KEY, (*RESULTS, *SCORES))


def contenders(num_classes: int) -> dict[str, Contender]:
    """What is compared at so many classes; cheap ones first. Those that are told how the labels are made, and
    so have no use for shuffled ones, are bounds and not rivals."""
    buckets = -(-num_classes // HASHES)
    return {
        "factored-oracle": Contender(
            "factored: told all attributes", "--head factored --grouping aligned --no-prior"
        ),
        "grouped-oracle": Contender(
            "grouped, aligned: told the attributes of groups and members",
            "--head grouped --modulation scale-shift --grouping aligned --no-prior",
        ),
        "grouped-random": Contender(
            "grouped, random",
            SHUFFLED + "--head grouped --modulation scale-shift --grouping random --no-prior",
        ),
        "grouped-discovered": Contender(
            "grouped, discovered in mean images",
            SHUFFLED + "--head grouped --modulation scale-shift --grouping discovered --no-prior",
        ),
        "grouped-linear-clusters": Contender(
            "grouped-linear, clusters of mean images",
            SHUFFLED + "--head grouped-linear --grouping clusters --no-prior",
        ),
        "prototype": Contender(
            "prototype: pairs of images, then an image a class",
            SHUFFLED + "--head prototype --images-of-a-class 2 --class-balance equal --refresh-images 1 "
            "--hold-out-classes 0 --grouping index --no-prior",
        ),
        "prototype-hard": Contender(
            "prototype, pairs of hard classes",
            SHUFFLED + "--head prototype --images-of-a-class 2 --class-balance equal --refresh-images 1 "
            "--hold-out-classes 0 --mine-at 1/10 3/10 6/10 --grouping index --no-prior",
        ),
        "adaptive": Contender("adaptive, by label", SHUFFLED + "--head adaptive --grouping index --no-prior"),
        "mach": Contender(
            f"mach, {HASHES} hashes, as many outputs as classes",
            SHUFFLED + f"--head mach --hashes {HASHES} --buckets {buckets} --grouping index --no-prior",
        ),
        **{
            f"sampled-{samples}": Contender(
                f"sampled, {samples:,} drawn",
                SHUFFLED + f"--head sampled --samples {samples} --grouping index --no-prior",
            )
            for samples in (512, 8192)
            if samples <= num_classes
        },
        REFERENCE: Contender("flat", SHUFFLED + "--head flat --grouping index --no-prior", cost=1.5),
        "flat-chunked": Contender(
            "flat, exact in chunks",
            SHUFFLED + "--head flat --chunk-size 16 --grouping index --no-prior",
            cost=1.5,
        ),
    }


@dataclass(frozen=True)
class ScoredJob(Job):
    """A run that is scored on test images, too: validation images choose its learning rate."""

    test_images: int = 0

    def is_finished(self) -> bool:
        return super().is_finished() and (self.folder / TEST).exists() and (self.folder / CPU).exists()

    def row(self, threads: int, shared: bool = False) -> Row:
        scored: Any = json.loads((self.folder / TEST).read_text("utf-8"))
        spent: Any = json.loads((self.folder / CPU).read_text("utf-8"))
        scores = {
            "test_loss": scored["loss"],
            "test_accuracy": scored["accuracy"]["overall"],
            "cpu_seconds": round(sum(spent), 2),
        }
        return super().row(threads, shared) | {name: str(scores[name]) for name in SCORES}


def scoring(train: Train, score: Train) -> Train:
    """Train by `train`, count the CPU seconds of it, then score the run on its test images by `score`.

    Those of the whole command count, but for its imports: finding groups, refreshing class vectors and the
    one evaluation at the end are part of what a head costs. Seconds on the clock would be those of whatever
    else the machine does.
    """

    def train_and_score(job: Job, threads: int) -> int:
        if not Job.is_finished(job):
            before = _cpu_seconds()
            try:
                code = train(job, threads)
            finally:  # a run may be stopped and go on
                if job.folder.is_dir():
                    path = job.folder / CPU
                    spent: list[float] = json.loads(path.read_text("utf-8")) if path.exists() else []
                    write_json(path, [*spent, _cpu_seconds() - before])
            if code or not Job.is_finished(job):
                return code
        return score(job, threads)

    return train_and_score


def score_in_fork(job: Job, threads: int) -> int:
    """Run `eval_classifier` on the test images -> its exit code."""
    assert isinstance(job, ScoredJob)
    images = str(job.test_images)

    def score() -> int:
        from classifier.cli import eval_main

        sys.argv = ["eval_classifier", str(job.folder), "--images", images, "--workers", "0"]
        return eval_main()

    return fork(score, threads)


def _cpu_seconds() -> float:
    """Of this process and of all that were started here and have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


# ---- which runs there are, and which of them count ----


def equal_images(
    names: Mapping[str, Contender],
    rates: Sequence[float],
    seeds: Sequence[int],
    settings: tuple[str, ...],
    runs: Path,
    test_images: int,
) -> list[ScoredJob]:
    """Every contender at every rate for equally many steps; all of a rate first, the middle one before the
    others, so that a part of the comparison is worth reading."""
    steps = int(settings[settings.index("--max-steps") + 1])
    middle = sorted(rates, key=lambda rate: abs(sorted(rates).index(rate) - len(rates) // 2))
    return [
        ScoredJob(
            "classifier.train", name, contender, seed, (*settings, "--lr", f"{rate:g}"), steps, runs,
            test_images=test_images,
        )
        for seed in dict.fromkeys(seeds)
        for rate in middle
        for name, contender in names.items()
    ]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One contender with one seed: its runs of equal steps, and what counts of them."""

    name: str
    seed: str
    at_rates: list[Row]
    """A row for each learning rate, all of the same number of steps."""
    chosen: Row
    """The one of them with the least *validation* loss."""
    longer: Row | None
    """The run of equal CPU seconds, which may be `chosen` itself; None if it has not been trained."""


def family_of(settings: str) -> str:
    """Settings without the learning rate and the length: what rows that compare have in common."""
    return re.sub(r" --(lr|max-steps|eval-every) \S+", "", settings)


def entries_of(rows: Sequence[Row]) -> list[Entry]:
    """The entries of one family. Those with the steps that most rows of the reference have are of equal
    images."""
    of_reference = [steps_of(row) for row in rows if row["contender"] == REFERENCE] or list(
        map(steps_of, rows)
    )
    steps = max(dict.fromkeys(of_reference), key=of_reference.count)
    entries = []
    for name, seed in dict.fromkeys((row["contender"], row["seed"]) for row in rows):
        mine = [row for row in rows if (row["contender"], row["seed"]) == (name, seed)]
        at_rates = [row for row in mine if steps_of(row) == steps]
        if at_rates:
            chosen = min(at_rates, key=lambda row: float(row["loss"]))
            others = [row for row in mine if steps_of(row) != steps and rate_of(row) == rate_of(chosen)]
            entries.append(Entry(name, seed, at_rates, chosen, others[-1] if others else None))
    seconds = {entry.seed: cost_of(entry.at_rates) for entry in entries if entry.name == REFERENCE}
    return [
        replace(entry, longer=entry.chosen)
        if entry.longer is None and is_near(cost_of(entry.at_rates), seconds.get(entry.seed))
        else entry
        for entry in entries
    ]


def equal_seconds(jobs: Sequence[ScoredJob], rows: Sequence[Row]) -> list[ScoredJob]:
    """Each contender once more, at its best rate, for about as many CPU seconds as the flat head took for the
    equal steps. Those that took about as many then are left out, and those that lack a rate or the flat head
    to compare with."""
    done = {_key(row): row for row in rows}
    found: dict[tuple[str, int], list[Row | None]] = {}
    for job in jobs:
        found.setdefault((job.name, job.seed), []).append(done.get(job.key))
    whole = {key: [row for row in at_rates if row] for key, at_rates in found.items() if None not in at_rates}
    by_key, longer = {job.key: job for job in jobs}, []
    for (_, seed), at_rates in whole.items():
        seconds = cost_of(whole[REFERENCE, seed]) if (REFERENCE, seed) in whole else None
        if seconds is None or is_near(cost_of(at_rates), seconds):
            continue
        job = by_key[_key(min(at_rates, key=lambda row: float(row["loss"])))]
        steps = max(1, round(job.steps * seconds / cost_of(at_rates)))
        longer.append(replace(job, steps=steps, settings=with_steps(job.settings, steps)))
    return longer


def cost_of(rows: Sequence[Row]) -> float:
    """CPU seconds of equally many steps: the least of several runs, for other work slows some of them."""
    return min(float(row["cpu_seconds"]) for row in rows)


def is_near(seconds: float, others: float | None) -> bool:
    """Whether these are about equal times."""
    return others is not None and abs(seconds / others - 1) <= NEAR


def _key(row: Row) -> Key:
    return tuple(row[name] for name in KEY)


def steps_of(row: Row) -> int:
    """How many steps a row's settings ask for."""
    return int(values_of(row["settings"])["--max-steps"][-1])


def classes_of(settings: str) -> int:
    """How many classes the settings of a row leave."""
    return AttributeSpace.parse_only(tuple(values_of(settings).get("--only", ()))).num_classes
