"""How large a vocabulary pays: bits per byte against V, every model with the same minutes of training.

    python scripts/figure_vocabulary.py --data tinystories                      # an hour
    python scripts/figure_vocabulary.py --data FOLDER --minutes 10 --seeds 0 1  # longer, twice
    python scripts/figure_vocabulary.py --other TEXT       # afterwards: other text, and how fast each writes
    python scripts/figure_vocabulary.py --quick                                 # under two minutes
    python scripts/figure_vocabulary.py --redraw                                # only the page and the figure

The obvious rival of a cheap head is a small vocabulary. Both are trained on the same text, which a byte-level
BPE of V tokens cuts up; losses of different tokens do not compare, bits per byte of the whole validation text
do. Each model is trained for a few steps first, which tells how many it can do in --minutes; then it is
trained for that many, the learning rate falling to zero over them. All of these are runs of `train_lm` in
--runs; the record is --out/vocabulary.csv, and what is there is not trained again. What --other finds is in
--out/vocabulary_after.csv.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.common.command import read_flags, run_script, say
from scripts.common.contenders import LM, lm_recipe, lm_settings
from scripts.common.jobs import Data, Job, record_of_runs, run_name, with_steps
from scripts.common.lm_models import Shape
from scripts.common.pages import write_figure, write_page
from scripts.common.records import Record, Row, lock_of
from scripts.common.runs import RunFlags, run_all, train_in_fork, train_in_new_process
from scripts.reports import vocabulary
from scripts.reports.vocabulary_figure import draw
from scripts.reports.vocabulary_rows import OCCURRING, OURS, THEIRS, is_whole, sections, size_of
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, positive

HEADS = (OURS, THEIRS)
TRIAL_STEPS, TRIAL_TOKENS = 20, 2_048  # enough for a median; their seconds are not counted
WARMUP_STEPS = 50  # of a whole run, or a fifth of it
QUICK_MINUTES = 0.05
SMALL = Shape(hidden_size=32, num_layers=2, num_attention_heads=2, seq_len=64, batch_size=4)


@dataclass(frozen=True)
class Config(RunFlags):
    """Bits per byte against the size of the vocabulary, for the same minutes of training."""

    data: str | None = None
    """As `train_lm --data`, but not auto; not needed with --other, which then trains nothing."""
    other: str | None = None
    """As --data: text of another source. Every model that is trained is scored on a part of its validation
    part, and all write in turns, to tell how fast."""
    vocabularies: tuple[str, ...] = (
        "train:1000", "train:2000", "train:4000", "train:8000", "train:16000", "train:32000", "gpt2",
        OCCURRING,
    )  # fmt: skip
    """As `train_lm --tokenizer`; gpt2-occurring is gpt2 with `--vocab occurring`. Each is trained with both
    heads."""
    minutes: float = 2.0
    """Minutes of the training loop of each model."""
    lr: float = 8e-3
    """Peak learning rate: by default the best of four for both heads at V = 50,257."""
    hidden_size: int = 128
    """Width of the hidden state."""
    num_layers: int = 8
    """Transformer blocks."""
    num_attention_heads: int = 8
    """Attention heads of a block."""
    seq_len: int = 512
    """Tokens of one sequence."""
    batch_size: int = 4
    """Sequences of a step."""
    runs: Path = Path("runs/vocabulary")
    shared: bool = False
    """Other work shares the cores, as much with every model: the page then says so."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "num_attention_heads", "seq_len", "batch_size")
        problems = self.problems() + at_least(self, 1, *sizes) + positive(self, "lr", "minutes")
        if self.other == "auto":
            problems.append("--other must name the text: tinystories, stories:N, a file or a folder")
        if self.other is not None and self.redraw:
            problems.append("--other: --redraw measures nothing; drop one of them")
        if self.data is not None or self.other is None:
            problems += self.data_problems(self.data)
        problems += [
            f"--vocabularies {name}: expected gpt2, {OCCURRING} or train:N"
            for name in self.vocabularies
            if name not in ("gpt2", OCCURRING) and not re.fullmatch("train:[0-9]+", name)
        ]
        if problems:
            raise UserError("; ".join(problems))

    def trials(self) -> list[Job]:
        """A few steps of every model: they tell its speed."""
        given = Shape(
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_attention_heads=self.num_attention_heads,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
        )
        shape, data = (SMALL, "stories:200") if self.quick else (given, str(self.data))
        vocabularies = ("train:300", "train:500", OCCURRING) if self.quick else self.vocabularies
        settings = lm_settings(shape, TRIAL_STEPS, WARMUP_STEPS, TRIAL_TOKENS).split()
        return [
            Job(
                "lm.train", name, LM[name], seed,
                (*settings, *tokens_of(vocabulary, self.lr)),
                TRIAL_STEPS, self.runs, data=Data.of(data),
            )
            for seed in dict.fromkeys(self.seeds)
            for vocabulary in dict.fromkeys(vocabularies)
            for name in HEADS
        ]  # fmt: skip


def tokens_of(vocabulary: str, lr: float) -> list[str]:
    """The flags of the recipe with a vocabulary."""
    if vocabulary == OCCURRING:
        return [*lm_recipe(lr, "gpt2").split(), "--vocab", "occurring"]
    return lm_recipe(lr, vocabulary).split()


def whole_runs(trials: Sequence[Job], record: Record, minutes: float) -> list[Job]:
    """Each model for as many steps as its trial says that it does in so many minutes, scored on all text."""
    done = {record.key_of(row): row for row in record.rows()}
    jobs = []
    for trial in trials:
        if trial.key in done:  # --max-minutes may have ended the trials
            steps = max(1, round(60 * minutes / float(done[trial.key]["seconds_per_step"])))
            settings = list(with_steps(trial.settings, steps))
            settings[settings.index("--warmup-steps") + 1] = str(max(1, min(WARMUP_STEPS, steps // 5)))
            settings[settings.index("--eval-tokens") + 1] = "0"
            jobs.append(replace(trial, steps=steps, settings=tuple(settings)))
    return jobs


def note_sizes(record: Record, runs: Path, after: Record) -> None:
    """Keep the size of each vocabulary, which its run has found out."""
    known = after.known()
    for folder in folders_of(record.rows(), record, runs):
        if (folder.name,) not in known:
            found = json.loads((folder / "config.json").read_text("utf-8"))
            after.keep({"run": folder.name, "vocab_size": str(found["vocab_size"])})


def folders_of(rows: Sequence[Row], record: Record, runs: Path) -> list[Path]:
    """The folders of the whole runs that are here."""
    folders = [runs / run_name(record.key_of(row)) for row in rows if is_whole(row)]
    return [folder for folder in folders if (folder / "best" / "state.json").exists()]


def joined(record: Record, after: Record) -> list[Row]:
    """The rows of the trainings, each with what was found out afterwards."""
    found = {row["run"]: row for row in after.rows()}
    return [row | found.get(run_name(record.key_of(row)), {}) for row in record.rows()]


def main(config: Config) -> None:
    """Train what the record lacks, measure what comes afterwards, then write the page and the figure."""
    out = config.folder()
    page, figure = out / "vocabulary.md", out / "vocabulary.png"
    record = record_of_runs(out / "vocabulary.csv")
    after = Record(out / "vocabulary_after.csv", ("run",), ("vocab_size",))
    began = time.monotonic()

    def report() -> None:
        note_sizes(record, config.runs, after)
        if parts := sections(joined(record, after)):
            with lock_of(page):
                write_page(page, vocabulary.document(parts, figure.name))
                write_figure(figure, draw(parts))

    def train(jobs: Sequence[Job]) -> None:
        known = record.known()
        lacking = [job for job in jobs if job.key not in known]
        left = config.max_minutes and config.max_minutes - (time.monotonic() - began) / 60
        if left is None or left > 0:
            way = train_in_fork if config.quick else train_in_new_process  # whose memory is its own
            run_all(lacking, record, config.threads, left, report, config.shared, way)
        else:
            say(f"--max-minutes {config.max_minutes:g} are over; runs left for the next call: {len(lacking)}")

    if config.other is not None:
        from scripts.common import finished_lm  # imports torch

        finished_lm.open_other(config.other)  # now, not after hours
    if not config.redraw and (config.quick or config.data is not None):
        minutes = QUICK_MINUTES if config.quick else config.minutes
        trials = config.trials()
        say(f"first a trial of {TRIAL_STEPS} steps of each model, then {minutes:g} minutes of each")
        train(trials)
        train(whole_runs(trials, record, minutes))
    if not record.rows():
        flag = "--redraw" if config.redraw else "--other without --data"
        raise UserError(f"{flag}: no row in {record.path}; --out names the folder of another record")
    report()
    if config.other is not None:
        if not (folders := folders_of(record.rows(), record, config.runs)):
            raise UserError(f"--runs {config.runs}: none of the runs of {record.path} is there")
        finished_lm.measure(folders, config.other, after, config.threads, config.shared)
        report()
    if unknown := [row for row in joined(record, after) if is_whole(row) and size_of(row) is None]:
        say(f"rows left out: {len(unknown)}; --runs {config.runs} lacks their runs, which tell the size V")
    print(f"{page}, {figure}, {record.path}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
