"""What tokens would be worth as examples: the mean of the contexts that each follows, instead of a layer.

    python scripts/text_prototypes.py runs/NAME                        # a run of train_lm
    python scripts/text_prototypes.py runs/NAME --tokens 200000        # from fewer contexts
    python scripts/text_prototypes.py runs/NAME --json out.json

The hidden states of a trained model, less their mean, make a `prototype` head: a token is the mean direction
of those before it in the training text, its prior how often it occurs, the temperature is fitted on further
training text. Both heads are scored on the same validation tokens, those left out that have no prototype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor
from torch.nn import functional as F

from lm.evaluate import some_windows
from lm.model import IGNORED, CompressedLM
from lm.runs import load_run
from lm.text.corpus import Tokens, open_corpus
from lm.text.sources import open_source
from scripts.common.command import json_problems, read_flags, run_script, say
from sqrtvocab import make_head
from sqrtvocab.atomic import write_json
from sqrtvocab.cache import default_cache
from sqrtvocab.errors import UserError
from sqrtvocab.flags import Flags, at_least
from sqrtvocab.training import open_runtime

BATCH = 8  # windows at a time
FITTED = 4_096  # tokens that the temperature is fitted on


@dataclass(frozen=True)
class Config(Flags):
    """What tokens would be worth as examples."""

    run: tyro.conf.Positional[Path]
    """A run folder of train_lm."""
    tokens: int = 1_000_000
    """Training tokens whose contexts are looked at."""
    eval_tokens: int = 131_072
    """Validation tokens to score."""
    json: Path | None = None
    """Write the figures to this file."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 1, "tokens", "eval_tokens") + json_problems(self.json)


@torch.no_grad()
def main(config: Config) -> None:
    """Make the prototypes and print both losses."""
    with open_runtime("cpu", "fp32", 0) as runtime:
        run = load_run(config.run, "best", runtime)
        source = open_source(
            run.settings["data_used"], run.config.valid_fraction, run.config.text_column, say
        )
        corpus = open_corpus(source, run.tokenizer, run.config.cache or default_cache(), say)
        model, length = run.model, run.config.seq_len
        windows = some_windows(corpus.train, length, config.tokens + FITTED)
        kept = -(-FITTED // length)
        if len(windows) <= kept:
            raise UserError(f"--tokens {config.tokens}: less than a window of {length} besides {FITTED:,}")

        width, size = model.head.in_features, model.head.num_classes
        sums, centre = torch.zeros(size, width), torch.zeros(width)
        for rows, _ in contexts(model, corpus.train, windows[:kept], length):
            centre += rows.sum(0)
        centre /= kept * length
        for rows, target in contexts(model, corpus.train, windows[kept:], length):
            sums.index_add_(0, target, F.normalize(rows - centre, dim=1))
        seen = sums.any(1)  # [V]
        head = make_head("prototype", width, size)
        head.init_prior(torch.from_numpy(corpus.train.counts))
        head.learn_classes(sums[seen], seen.nonzero().squeeze(1))
        fitted = list(contexts(model, corpus.train, windows[:kept], length))
        hidden, target = (torch.cat(parts) for parts in zip(*fitted, strict=True))
        head.eval().fit_temperature(hidden - centre, target)

        totals = {name: torch.zeros(2, dtype=torch.float64) for name in ("the run's own head", "prototypes")}
        scored, left_out = 0, 0
        chosen = some_windows(corpus.validation, length, config.eval_tokens)
        for rows, target in contexts(model, corpus.validation, chosen, length):
            known = seen[target]
            rows, target = rows[known], target[known]
            scored, left_out = scored + len(target), left_out + int((~known).sum())
            both = zip(totals.values(), (model.head, head), (rows, rows - centre), strict=True)
            for total, one, states in both:
                right = (one.predict(states) == target).sum()
                total += torch.stack([one(states, target, reduction="sum").loss, right])
    figures = {"tokens with a prototype": int(seen.sum()), "scored": scored, "left out": left_out}
    print(", ".join(f"{name} {count:,}" for name, count in figures.items()))
    for name, (loss, right) in totals.items():
        print(f"{name:<20}{loss / scored:8.3f} nats  {right / scored:6.1%} right")
    if config.json is not None:
        values = {name: (total / scored).tolist() for name, total in totals.items()}
        write_json(config.json, {**figures, **values})


def contexts(
    model: CompressedLM, tokens: Tokens, windows: Sequence[int], length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states [N, d] and the tokens that follow them [N], some windows at a time."""
    for start in range(0, len(windows), BATCH):
        inputs, targets = tokens.batch(windows[start : start + BATCH], length)
        hidden = model.adapted(model.backbone(input_ids=inputs, use_cache=False).last_hidden_state)
        counted = targets != IGNORED
        yield hidden[counted], targets[counted]


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
