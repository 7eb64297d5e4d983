"""Heads compared on real classes: characters in typefaces never seen, an equal number of minutes for each.

    python scripts/figure_characters.py hangul                       # 11,172 syllables; a day on two cores
    python scripts/figure_characters.py han --minutes 60             # Chinese characters, U+4E00 to U+9FFF
    python scripts/figure_characters.py hangul --contenders prototype --minutes 30
    python scripts/figure_characters.py --quick                      # letters, in matplotlib's own fonts
    python scripts/figure_characters.py hangul --redraw              # only the page and the figure

Draws the set if it is not there (`render_characters`). Each head is trained at every learning rate of
--rates; the best on the *validation* families is scored once on the test families, and the best heads are
trained with further --seeds. The record is --out/characters_SCRIPT.csv; what is there is not trained again.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from scripts.characters.contenders import CharacterJob, contenders_of
from scripts.characters.sheet import COLUMNS, hardest
from scripts.common.command import read_flags, run_script, say
from scripts.common.jobs import KEY, Data, Job, by_definition, rate_of, record_of_runs
from scripts.common.pages import write_figure, write_page
from scripts.common.records import Key, Record, Row, lock_of
from scripts.common.runs import RunFlags, launch, require_rows, run_all, train_in_new_process
from scripts.reports.characters import best_rows, document, draw
from sqrtvocab.atomic import write_bytes, write_json
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least, positive

TRIAL = 20  # steps by which it is told how many fit into the minutes
_RECIPE = "--grey --schedule cosine --accumulate 1 --epochs 100000 --precision fp32 --workers 0"
_EVALUATE = "import sys; from classifier.cli import eval_main; sys.exit(eval_main())"
_EXPORT = _EVALUATE.replace("eval_main", "export_main")
_QUICK_FONTS = "DejaVuSans.ttf", "DejaVuSerif.ttf", "STIXGeneral.ttf"


@dataclass(frozen=True)
class CharacterFlags(RunFlags):
    """Compare the heads on the characters of a script."""

    script: tyro.conf.Positional[str] = "hangul"
    """As `render_characters --script`."""
    data: Path | None = None
    """The set, drawn if it is not there; runs/SCRIPT by default."""
    contenders: tuple[str, ...] = ()
    """Which of them; by default all."""
    minutes: float = 30.0
    """How long each run trains, by the seconds of a step in a short trial; evaluations come on top."""
    steps: int | None = None
    """Train so many steps instead."""
    rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    """Learning rates."""
    best: int = 3
    """How many of the heads are trained with all --seeds; the others with the first one."""
    batch_size: int = 128
    """Images of a step."""
    image_size: int = 48
    """Side of the pictures, for which the set is drawn."""
    backbone: str = "swift"
    """As `train_classifier --backbone`."""
    augment: str = "letters"
    """As `train_classifier --augment`."""
    looks: int = 10
    """How often a run is scored on the validation families."""
    eval_images: int = 4000
    """Pictures of the validation families that are scored."""
    shared: bool = False
    """Other work shares the cores: keep the scores of these runs, leave their seconds out."""

    def __post_init__(self) -> None:
        found = self.problems() + positive(self, "minutes")
        found += at_least(self, 1, "steps", "best", "batch_size", "image_size", "looks", "eval_images")
        known = contenders_of(self.script)
        found += [
            f"--contenders {name}: expected some of {', '.join(known)}"
            for name in self.contenders
            if name not in known
        ]
        if not self.rates or min(self.rates) <= 0:
            found.append("--rates must be at least one positive number")
        if found:
            raise UserError("; ".join(found))

    @property
    def name(self) -> str:
        """Of the files: that of the script."""
        return "letters" if self.quick else Path(self.script).stem

    def set_folder(self) -> Path:
        """Where the set is, or is to be."""
        return self.data or Path("runs/quick" if self.quick else "runs") / self.name

    def settings(self, steps: int, rate: float) -> tuple[str, ...]:
        """The flags of `train_classifier` that all contenders share."""
        every = -(-steps // self.looks)
        text = (
            f"--backbone {self.backbone} --image-size {self.image_size} --augment {self.augment} "
            f"--batch-size {self.batch_size} --max-steps {steps} --warmup-steps {min(20, steps // 4)} "
            f"--eval-every {every} --eval-images {self.eval_images} --lr {rate:g} {_RECIPE}"
        )
        return tuple(text.split())


def draw_set(config: CharacterFlags) -> Path:
    """The folder of the set, drawn now if it is not whole."""
    folder = config.set_folder()
    if (folder / "manifest.json").is_file():
        return folder
    flags = ["--script", config.script, "--out", str(folder), "--size", str(config.image_size)]
    if config.quick:
        import matplotlib

        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        letters = folder.parent / "letters.txt"
        letters.parent.mkdir(parents=True, exist_ok=True)
        letters.write_text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "utf-8")
        flags = ["--script", str(letters), "--out", str(folder), "--min-families", "3", "--size", "32"]
        flags += ["--fonts", *(str(fonts / name) for name in _QUICK_FONTS)]
    if code := launch(["-m", "scripts.render_characters", *flags], config.threads):
        raise (
            UserError("the set could not be drawn: see above")
            if code == 2
            else RunError("render_characters failed")
        )
    return folder


def train(job: Job, threads: int) -> int:
    """Train, and keep beside the run what it took of the processor, its evaluations included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        return train_in_new_process(job, threads)
    finally:  # after a signal, too: the call that goes on with the run adds what it takes
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        path = job.folder / "core_seconds.json"
        if job.folder.is_dir():
            earlier = json.loads(path.read_text())["core_seconds"] if path.exists() else 0.0
            taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            write_json(path, {"core_seconds": round(earlier + taken, 1)})


class Experiment:
    """The jobs of a comparison and what the record says of them."""

    def __init__(self, config: CharacterFlags, out: Path) -> None:
        self.config = config
        self.folder = config.set_folder()
        self.contenders = contenders_of(config.script)
        self.names = config.contenders or (
            ("flat", "grouped-index") if config.quick else tuple(self.contenders)
        )
        self.record = record_of_runs(out / f"characters_{config.name}.csv")
        self.pairs = out / f"characters_{config.name}_pairs.png"
        self.families = Record(
            out / f"characters_{config.name}_families.csv", (*KEY, "family"), ("pictures", "accuracy")
        )
        self.trials = Record(config.runs / f"characters_{config.name}_speed.csv", ("contender", "settings"))

    def job(self, name: str, seed: int, steps: int, rate: float) -> Job:
        """One run."""
        made_of = (name, self.contenders[name], seed, self.config.settings(steps, rate), steps)
        return CharacterJob("classifier.train", *made_of, self.config.runs, data=Data.of(str(self.folder)))

    def steps_of(self, name: str) -> int:
        """How many steps of this head fit into the minutes: as a trial told, which is kept for good."""
        if self.config.quick:
            return 4
        if self.config.steps is not None:
            return self.config.steps
        job = self.job(name, self.config.seeds[0], TRIAL, self.config.rates[0])
        job = replace(job, runs=self.config.runs / "trials")
        key = (name, job.key[2])
        known = {self.trials.key_of(row): row for row in self.trials.rows()}
        if key not in known:
            say(f"{name}: a trial of {TRIAL} steps")
            if code := train(job, self.config.threads):
                raise (UserError if code == 2 else RunError)(f"{name} was refused by the trainer: see above")
            row = job.row(self.config.threads)
            values = {"contender": name, "settings": key[1], "seconds_per_step": row["seconds_per_step"]}
            self.trials.keep(values)
            known[key] = values
        return max(TRIAL, int(60 * self.config.minutes / float(known[key]["seconds_per_step"])))

    def lengths(self) -> dict[str, int]:
        """Steps of each contender."""
        self.config.runs.mkdir(parents=True, exist_ok=True)
        return {name: self.steps_of(name) for name in dict.fromkeys(self.names)}

    def first_jobs(self, lengths: dict[str, int]) -> list[Job]:
        """Every head at every rate, with the first seed."""
        seed = self.config.seeds[0]
        return [self.job(name, seed, lengths[name], rate) for name in lengths for rate in self.config.rates]

    def further_jobs(self, lengths: dict[str, int]) -> list[Job]:
        """The best heads at their best rates, with the other seeds."""
        rows = [row for row in self.rows() if lengths.get(row["contender"]) == int(row["steps"])]
        best = sorted(best_rows(rows), key=lambda row: -float(row["accuracy"]))
        rates = {row["contender"]: float(rate_of(row)) for row in best}  # as many as there are heads
        return [
            self.job(name, seed, lengths[name], rate)
            for name, rate in list(rates.items())[: self.config.best]
            for seed in self.config.seeds[1:]
        ]

    def rows(self) -> list[Row]:
        """What the record has of the contenders as they are now."""
        return by_definition(self.record.rows(), self.contenders)[0]

    def score(self, jobs: Sequence[Job]) -> None:
        """Put beside the rows what the processor did, and score on the test families what is best in
        validation: nothing else is ever scored there."""
        by_key = {job.key: job for job in jobs}
        rows = {self.record.key_of(row): row for row in self.record.rows()}
        best = {self.record.key_of(row) for row in best_rows(self.rows())}
        for key, job in by_key.items():
            row = rows.get(key)
            if row is None or not job.folder.is_dir():
                continue
            path, new = job.folder / "core_seconds.json", {}
            if not row.get("core_seconds") and path.exists():
                new["core_seconds"] = str(json.loads(path.read_text())["core_seconds"])
            if key in best and not row.get("test_accuracy"):
                new |= test_scores(job.folder, self.folder, self.config.threads)
            if key in best and not row.get("exported_mb"):
                new["exported_mb"] = exported_size(job.folder, self.config.threads)
            if new:
                self.record.keep(row | new)
        best_job = next((job for job in jobs if job.key == self.best_key()), None)
        if best_job is not None and (best_job.folder / "eval-test.json").exists():
            self.look_at(best_job)

    def best_key(self) -> Key | None:
        """Of all runs scored on the test families that which is best in validation."""
        rows = [row for row in self.rows() if row.get("test_accuracy")]
        best = max(rows, key=lambda row: float(row["accuracy"]), default=None)
        return None if best is None else self.record.key_of(best)

    def look_at(self, job: Job) -> None:
        """What the best run makes of each test family, and a picture of the characters that it takes for each
        other most often."""
        confused = json.loads((job.folder / "eval-test.json").read_text("utf-8")).get("confused", [])
        pairs = [(pair["true"], pair["predicted"]) for pair in confused][: COLUMNS // 2]
        if pairs:
            write_bytes(self.pairs, hardest(pairs, self.folder))
        if not self.families_of(job.key):
            from scripts.characters.reading import read_split  # imports torch

            for family, (pictures, accuracy) in read_split(job.folder, self.folder).by_family().items():
                values = {"family": family, "pictures": str(pictures), "accuracy": str(accuracy)}
                self.families.keep(dict(zip(KEY, job.key, strict=True)) | values)

    def families_of(self, key: Key | None) -> list[Row]:
        """The rows of a run in the record of families."""
        return [row for row in self.families.rows() if tuple(row[name] for name in KEY) == key]


def test_scores(run: Path, data: Path, threads: int) -> dict[str, str]:
    """`eval_classifier` on all pictures of the test families, and the same for classes that were held out of
    training, if any were."""
    if launch(["-c", _EVALUATE, str(run), "--split", "test"], threads):
        raise RunError(f"{run}: eval_classifier failed")
    scores: dict[str, Any] = json.loads((run / "eval-test.json").read_text("utf-8"))
    accuracy = scores["accuracy"]
    values = {"test_accuracy": accuracy["overall"], "test_group_accuracy": accuracy["group"]}
    values["test_loss"] = scores["loss"]
    if json.loads((run / "config.json").read_text("utf-8"))["hold_out_classes"]:
        from scripts.characters.reading import read_split  # imports torch

        values["test_new_accuracy"] = read_split(run, data).of_new_classes()[1]
    return {name: str(value) for name, value in values.items()}


def exported_size(run: Path, threads: int) -> str:
    """Megabytes of what `export_classifier` makes; "" if it fails, to be tried again by the next call."""
    if launch(["-c", _EXPORT, str(run), "--out", str(run / "model.onnx")], threads):
        say(f"{run}: export_classifier failed; its size is left out")
        return ""
    files = run.glob("model.onnx*")  # large weights stand in a second file
    return f"{sum(file.stat().st_size for file in files) / 1e6:.2f}"


def main(config: CharacterFlags) -> None:
    """Draw the characters, train, score, tabulate."""
    out = config.folder()
    experiment = Experiment(config, out)
    record, page = experiment.record, out / f"characters_{config.name}.md"

    def report() -> None:
        rows = experiment.rows()
        if rows:
            with lock_of(page):
                figure = page.with_suffix(".png")
                write_figure(figure, draw(rows))
                families = experiment.families_of(experiment.best_key())
                made_of = (config.name, rows, experiment.contenders, figure.name, experiment.pairs, families)
                write_page(page, document(*made_of))

    if config.redraw:
        require_rows(record, experiment.contenders)
    else:
        draw_set(config)
        lengths = experiment.lengths()
        jobs = experiment.first_jobs(lengths)
        for stage in (lambda: jobs, lambda: experiment.further_jobs(lengths)):
            stage_jobs = stage()
            todo = [job for job in stage_jobs if job.key not in record.known()]
            if todo:
                run_all(todo, record, config.threads, config.max_minutes, report, config.shared, train)
            experiment.score(stage_jobs)
    report()
    print(f"{page}, {record.path}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(CharacterFlags, __doc__)))
