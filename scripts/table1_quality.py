"""The paper's Table 1: how good the models are, by validation loss, with its judge's scores beside.

    python scripts/table1_quality.py --data tinystories --steps 400
    python scripts/table1_quality.py --data FOLDER --hidden-sizes 128 --max-minutes 60   # a part
    python scripts/table1_quality.py --quick                                             # under two minutes
    python scripts/table1_quality.py --redraw                                            # only the table

The paper graded stories and gave no loss. Validation loss compares models without a judge; if
OPENAI_API_KEY (and OPENAI_BASE_URL) name a server, `judge_lm` grades our models, too. The record is
--out/quality.csv: what is there is not trained again. A run that was stopped is resumed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.common.command import read_flags, run_script, say
from scripts.common.contenders import lm_recipe, lm_settings
from scripts.common.jobs import Data, Job, by_definition, record_of_runs
from scripts.common.lm_models import Shape
from scripts.common.pages import write_page
from scripts.common.records import Key, Record, Row, lock_of
from scripts.common.runs import RunFlags, launch, require_rows, run_all
from scripts.reports.quality import MODELS, SCORES, document
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.flags import at_least, positive


@dataclass(frozen=True)
class Config(RunFlags):
    """The paper's Table 1: validation loss of all its models and of ours, and the judge's scores."""

    data: str | None = None
    """As `train_lm --data`, but not auto."""
    models: tuple[str, ...] = tuple(MODELS)
    """Which of them."""
    hidden_sizes: tuple[int, ...] = (128, 256, 512)
    """Widths of the hidden state; the paper has these three."""
    steps: int = 400
    """Optimiser steps of each run; the learning rate falls to zero over them."""
    batch_size: int = 8
    """Sequences of 512 tokens in a step; the paper has 32."""
    lr: float = 1e-3
    """Peak learning rate."""
    eval_tokens: int = 131_072
    """Validation tokens, scored once at the end."""
    judge_model: str = "gpt-4o-mini"
    """The judge's name on its server."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.models if name not in MODELS]
        problems = [f"--models {name}: expected some of {', '.join(MODELS)}" for name in unknown]
        if not self.models:
            problems.append(f"--models: name at least one of {', '.join(MODELS)}")
        if not self.hidden_sizes:
            problems.append("--hidden-sizes: name at least one")
        if bad := [size for size in self.hidden_sizes if size < 8 or size % 8]:
            problems.append(
                f"--hidden-sizes {bad[0]}: expected multiples of 8, the number of attention heads"
            )
        problems += at_least(self, 1, "steps", "batch_size", "eval_tokens") + positive(self, "lr")
        if problems := [*problems, *self.problems(), *self.data_problems(self.data)]:
            raise UserError("; ".join(problems))


def plan(config: Config, known: set[Key]) -> list[Job]:
    """The runs that the record lacks: seed by seed, small before large."""
    shape, sizes = Shape(batch_size=config.batch_size), config.hidden_sizes
    data, steps, tokens = Data.of(str(config.data)), config.steps, config.eval_tokens
    if config.quick:
        shape, sizes = Shape(num_layers=2, num_attention_heads=2, seq_len=64, batch_size=4), (16, 32)
        data, steps, tokens = Data.of("stories:200"), 6, 2_048

    def job_of(name: str, size: int, seed: int) -> Job:
        settings = lm_settings(replace(shape, hidden_size=size), steps, min(100, steps // 4), tokens)
        flags = (*settings.split(), *lm_recipe(config.lr).split())
        return Job("lm.train", name, MODELS[name], seed, flags, steps, config.runs, data)

    jobs = [
        job_of(name, size, seed)
        for seed in dict.fromkeys(config.seeds)
        for size in dict.fromkeys(sizes)
        for name in MODELS
        if name in config.models
    ]
    return [job for job in jobs if job.key not in known]


def has_judge() -> bool:
    """Whether the environment names a server that can grade."""
    return bool(os.environ.get("OPENAI_API_KEY", "").strip())


def grade(folder: Path, row: Row, record: Record, config: Config) -> bool:
    """Let the judge read a run's stories and add the scores to its row -> whether there are scores now."""
    say(f"judging {folder} with {config.judge_model}")
    command = ["-c", "from lm.cli import judge_main; raise SystemExit(judge_main())", str(folder)]
    # A file for each judge: `judge_lm` does not mix the answers of two.
    answers = folder / f"judge-{re.sub(r'[^A-Za-z0-9.]+', '-', config.judge_model)}.jsonl"
    if launch([*command, "--model", config.judge_model, "--out", str(answers)], config.threads):
        return False
    graded = json.loads(answers.with_suffix(".json").read_text("utf-8"))
    if not graded["valid"]:  # no grade could be read: the means are no numbers
        return False
    scores = {name: str(round(graded["scores"][name]["mean"], 3)) for name in SCORES}
    record.keep({**row, **scores, "judge": config.judge_model, "graded": str(graded["valid"])})
    return True


def grade_all(record: Record, config: Config) -> None:
    """Grade the runs whose rows have no scores of this judge yet.

    Raises:
        RunError: the judge failed on some, or their runs are gone.
    """
    if not has_judge():
        return
    jobs = {job.key: job for job in plan(config, set())}
    ungraded = []
    for row in record.rows():
        job = jobs.get(record.key_of(row))
        if job is None or (row.get("grammar") and row.get("judge") == config.judge_model):
            continue
        if not (job.is_finished() and grade(job.folder, row, record, config)):
            ungraded.append(row)
    if ungraded:
        names = ", ".join(f"{row['contender']} (seed {row['seed']})" for row in ungraded)
        raise RunError(f"no scores for {names}: the judge failed, or the run is not in {config.runs}")


def main(config: Config) -> None:
    """Train, grade, tabulate."""
    out = config.folder()
    record, page = record_of_runs(out / "quality.csv"), out / "quality.md"

    def report() -> None:
        now, older = by_definition(record.rows(), MODELS)
        if now:
            with lock_of(page):  # another part of the table may report, too
                write_page(page, document(now, older))

    if config.redraw:
        require_rows(record, MODELS)
        report()
    else:
        jobs = plan(config, record.known())
        say(f"runs to do: {len(jobs)}; watch them with: tensorboard --logdir {config.runs}")
        if not has_judge():
            say("no judge: OPENAI_API_KEY (and OPENAI_BASE_URL, for a server of your own) would name one")
        run_all(jobs, record, config.threads, config.max_minutes, report)
        try:
            grade_all(record, config)
        finally:
            report()
    print(f"{page}, {record.path}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
