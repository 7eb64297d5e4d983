"""How well a language model predicts and how varied its writing is; `eval_lm`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from lm.build import open_vocabulary
from lm.config import EvalConfig
from lm.generate import continue_stories, fitting
from lm.model import IGNORED, CompressedLM
from lm.runs import TrainedRun, load_run, read_partition
from lm.stories.openings import SAMPLE_PROMPTS
from lm.text.corpus import Corpus, Tokens, open_corpus
from lm.text.sources import open_source
from lm.text.tokenizer import TextTokenizer
from sqrtvocab import Partition
from sqrtvocab.cache import default_cache
from sqrtvocab.training import Runtime, UserError, open_runtime, write_json
from sqrtvocab.training.score_report import group_by_classes, score_document, score_lines
from sqrtvocab.training.scores import Scores, ScoreSheet
from sqrtvocab.training.vocab_parallel import in_step, no_rows


@dataclass(frozen=True)
class Evaluation:
    """What a model made of so many tokens."""

    tokens: int
    loss: float  # mean negative log-likelihood, in nats
    group_loss: float
    member_loss: float
    token_accuracy: float
    group_accuracy: float
    scores: Scores

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def bits_per_byte(self, tokens: Tokens) -> float:
        """The loss by length of text, which does not depend on the tokenizer."""
        return self.loss / math.log(2) * tokens.predictions / tokens.text_bytes

    def scalars(self) -> dict[str, float]:
        """For TensorBoard."""
        return {
            "loss/validation": self.loss,
            **({"loss/validation_group": self.group_loss} if self.group_loss else {}),
            "loss/validation_member": self.member_loss,
            "perplexity/validation": self.perplexity,
            "accuracy/token": self.token_accuracy,
            "accuracy/group": self.group_accuracy,
        }


class TokenNames(Sequence[str]):
    """The tokens as they stand in text, a space shown as such; parts of a letter by their number."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def __getitem__(self, index: Any) -> Any:
        text = self._tokenizer.decode([int(index)])
        if not text or "\ufffd" in text:
            return f"<{index}>"
        return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")


def some_windows(tokens: Tokens, length: int, limit: int) -> list[int]:
    """Windows of about `limit` predictions, spread evenly over the text; all of them for 0."""
    total = tokens.windows(length, partial=True)
    wanted = total if limit == 0 else min(total, max(1, limit // length))
    return np.linspace(0, total, wanted, endpoint=False).astype(int).tolist()


@torch.inference_mode()
def evaluate(
    model: CompressedLM,
    tokens: Tokens,
    windows: Sequence[int],
    length: int,
    partition: Partition,
    runtime: Runtime,
    batch_size: int,
    show_progress: bool = False,
) -> Evaluation:
    """Score `model` on windows of a text, shared among the ranks; every rank gets the result for all.

    Args:
        partition: what "group" means for a head that has no groups.
        show_progress: draw a bar.
    """
    was_training = model.training
    model.eval()
    sheet = ScoreSheet(model.head.num_classes, partition, runtime)
    mine = windows[runtime.rank :: runtime.world_size]
    starts = tqdm(
        range(0, len(mine), batch_size), desc="evaluating", unit="batch", leave=False, delay=2,
        disable=None if show_progress else True,  # None: not into a file
    )  # fmt: skip
    for start in in_step(starts, model.head, runtime):
        with runtime.autocast():
            if start is None:
                rows, truth = no_rows(model.head)
            else:
                inputs, targets = tokens.batch(mine[start : start + batch_size], length)
                inputs, targets = inputs.to(runtime.device), targets.to(runtime.device)
                outputs = model.backbone(input_ids=inputs, use_cache=False)
                hidden = model.adapted(outputs.last_hidden_state)  # [B, L, d]
                kept = targets != IGNORED
                rows, truth = hidden[kept], targets[kept]  # [N, d], [N]
            losses = model.head(rows, truth, reduction="none")
            guesses = model.head.guesses(rows, truth, partition)
        sheet.add(truth, losses, guesses)
    model.train(was_training)
    scores = sheet.total()
    return Evaluation(
        scores.rows,
        scores.loss,
        scores.group_loss,
        scores.member_loss,
        scores.accuracy,
        scores.group_accuracy,
        scores,
    )


# ---- how varied its writing is ----


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct n-grams of words among all n-grams of the texts; NaN if there are none."""
    grams = [gram for text in texts for gram in _ngrams(text, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def repetition(texts: Sequence[str], n: int = 4) -> float:
    """Share of a text's n-grams of words that it has said before, averaged over the texts; NaN if none."""
    shares = [1 - len(set(grams)) / len(grams) for text in texts if (grams := _ngrams(text, n))]
    return fmean(shares) if shares else math.nan


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = re.findall(r"[\w']+", text.lower())
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


# ---- the command ----


def report(config: EvalConfig) -> None:
    """Run `eval_lm`: print a table and write it as JSON into the run folder.

    Raises:
        UserError: for input that cannot be used.
    """
    with open_runtime(config.device, config.precision, config.seed) as runtime:
        run = load_run(config.run, config.checkpoint, runtime)
        corpus = _text(config, run)
        tokens = corpus.validation
        length = run.config.seq_len
        partition = read_partition(
            config.run, run.model.head, run.config.grouping, run.settings["groups"]
        ).to(runtime.device)
        windows = some_windows(tokens, length, config.tokens)
        result = evaluate(
            run.model, tokens, windows, length, partition, runtime, config.batch_size, show_progress=True
        )
        prompts = fitting(SAMPLE_PROMPTS, run.tokenizer, run.model)
        openings = [prompts[i % len(prompts)] for i in range(config.samples)] if prompts else []
        texts = continue_stories(
            run.model,
            run.tokenizer,
            openings,
            max_tokens=config.max_tokens,
            temperature=1.0,
            top_k=0,
            seed=config.seed,
            batch_size=config.batch_size,
        )
    document = {
        "run": str(config.run),
        "checkpoint": config.checkpoint,
        "step": run.state["step"],
        "head": run.config.head,
        "data": config.data or run.settings["data_used"],
        "tokens": result.tokens,
        "loss": result.loss,
        "group_loss": result.group_loss,
        "member_loss": result.member_loss,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte(tokens),
        "token_accuracy": result.token_accuracy,
        "group_accuracy": result.group_accuracy,
    }
    if texts:
        document |= {f"distinct_{n}": distinct(texts, n) for n in (1, 2, 3)}
        document |= {"repetition": repetition(texts), "samples": len(texts)}
    counts = corpus.train.counts
    details = score_document(
        result.scores, counts, group_by_classes(partition, TokenNames(run.tokenizer), counts)
    )
    document |= details
    path = config.run / "eval.json"
    write_json(path, document)
    print(
        f"{run.config.head} head on {run.config.backbone}, step {run.state['step']:,} ({config.checkpoint}), "
        f"{result.tokens:,} validation tokens of {document['data']}\n"
    )
    for name, value in document.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):<16}{value:>10.4f}")
    print("\n".join(score_lines(details, "tokens")))
    print(f"\nsaved as {path}")


def _text(config: EvalConfig, run: TrainedRun) -> Corpus:
    trained, cache = run.config, config.cache or run.config.cache or default_cache()
    # What `auto` found in training is named, so that evaluation does not find something else.
    source = open_source(
        config.data or run.settings["data_used"], trained.valid_fraction, trained.text_column, print
    )
    tokenizer = run.tokenizer
    # A tokenizer learnt from the data tells whether these have changed. Any other came from elsewhere, and
    # the run's own copy is all that is needed.
    learnt = config.data is None and trained.tokenizer.startswith("train:")
    if learnt and open_vocabulary(trained, source, cache, print).digest != tokenizer.digest:
        raise UserError(
            f"--data: {source.name} has changed since training, and with it the tokenizer "
            f"{trained.tokenizer}; name the text to score with --data"
        )
    return open_corpus(source, tokenizer, cache, print)
