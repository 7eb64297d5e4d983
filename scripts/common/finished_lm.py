"""What finished runs of `train_lm` are worth afterwards: bits per byte of other text, characters a second.

Both go into a small record beside that of the trainings, with a row for each run folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from lm.evaluate import evaluate, some_windows
from lm.generate import continue_stories
from lm.runs import TrainedRun, load_run, read_partition
from lm.stories.openings import SAMPLE_PROMPTS
from lm.text.corpus import open_corpus
from lm.text.sources import Documents, Source, open_source
from scripts.common.command import say
from scripts.common.jobs import SHARED, Data
from scripts.common.records import Record
from sqrtvocab.cache import default_cache
from sqrtvocab.errors import UserError
from sqrtvocab.measure.machine import describe_machine
from sqrtvocab.training import Runtime, open_runtime

OTHER_BYTES = 400_000  # of other text, scored by every model: half a minute of a core
BATCH = 4  # sequences at a time
TURNS = 5  # of each model in writing, after one to warm up
TOKENS = 128  # of a turn


@dataclass(frozen=True)
class Part(Documents):
    """Documents spread evenly over a split, up to `limit` bytes: the same text, whatever the tokenizer."""

    whole: Documents
    limit: int

    @property
    def size(self) -> int:  # type: ignore[override]
        return min(self.whole.size, self.limit)

    @property
    def choice(self) -> str:  # type: ignore[override]
        return f"{self.whole.choice}, {self.limit} bytes"

    def __iter__(self) -> Iterator[str]:
        every, left = -(-self.whole.size // self.limit), self.limit
        for document in islice(self.whole, None, None, every):
            data = document.encode()[:left]
            left -= len(data)
            if text := data.decode(errors="ignore").strip():  # it may have been cut within a letter
                yield text
            if left <= 0:
                return

    def fingerprint(self) -> object:
        return [self.whole.fingerprint(), self.limit]


def open_other(flag: str) -> Source:
    """The text that `--other` names.

    Raises:
        UserError: no such file or folder, or no text in it.
    """
    try:
        return open_source(flag, 0.01, "text", say)
    except UserError as error:
        raise UserError(str(error).replace("--data", "--other", 1)) from error


def measure(folders: Sequence[Path], flag: str, record: Record, threads: int, shared: bool) -> None:
    """Add what the record lacks about these run folders: the score on other text; the speed of writing of
    all, if that of one is missing, for only speeds of the same race compare.

    Raises:
        UserError: the text or a run cannot be used.
    """
    source, text = open_other(flag), Data.of(flag)
    known = {row["run"]: row for row in record.rows()}
    scored = {"other": text.name, "other_data_bytes": str(text.size)}
    unscored = [folder for folder in folders if not scored.items() <= known.get(folder.name, {}).items()]
    untimed = [folder for folder in folders if not known.get(folder.name, {}).get("characters_per_s")]
    if not unscored and not untimed:
        say(f"nothing to score: all of it is in {record.path}")
        return
    torch.set_num_threads(threads)
    with open_runtime("auto", "fp32", 0) as runtime:
        runs = {folder: load_run(folder, "best", runtime) for folder in (folders if untimed else unscored)}
        for folder in tqdm(unscored, desc=f"scoring on {text.name}", leave=False):
            bits, size = bits_per_byte(runs[folder], folder, source, runtime)
            values = {**scored, "other_bytes": str(size), "other_bits_per_byte": f"{bits:.5f}"}
            record.keep({"run": folder.name, **values})
        if not untimed:
            return
        place = describe_machine(runtime.device.type, threads) + (SHARED if shared else "")
        for folder, speed in zip(runs, characters_per_second(list(runs.values())), strict=True):
            values = {"characters_per_s": f"{speed:.1f}", "written_on": place}
            record.keep({"run": folder.name, **values})


def bits_per_byte(run: TrainedRun, folder: Path, source: Source, runtime: Runtime) -> tuple[float, int]:
    """As `eval_lm` has it, of at most `OTHER_BYTES` of the validation part -> the score, and how many."""
    part, length = Part(source.validation, OTHER_BYTES), run.config.seq_len
    corpus = open_corpus(replace(source, train=part, validation=part), run.tokenizer, default_cache(), say)
    tokens = corpus.validation
    partition = read_partition(folder, run.model.head, run.config.grouping, run.settings["groups"])
    windows = some_windows(tokens, length, 0)
    place = partition.to(runtime.device)
    result = evaluate(run.model, tokens, windows, length, place, runtime, BATCH)
    return result.bits_per_byte(tokens), tokens.text_bytes


def characters_per_second(runs: Sequence[TrainedRun]) -> list[float]:
    """How fast each writes one text at a time by sampling with top-k 50: medians over turns, which all take
    one after the other, so that whatever slows the machine slows all of them alike."""
    speeds: list[list[float]] = [[] for _ in runs]
    for turn in tqdm(range(TURNS + 1), desc="writing in turns", leave=False):
        for run, mine in zip(runs, speeds, strict=True):
            began = time.perf_counter()
            (text,) = continue_stories(
                run.model, run.tokenizer, SAMPLE_PROMPTS[:1], max_tokens=TOKENS, top_k=50, seed=turn
            )
            mine.append(len(text) / (time.perf_counter() - began))
    return [median(mine[1:]) for mine in speeds]
