"""What `compress_vocab` loses on a trained flat model, by calibration tokens, and how soon training mends it.

    python scripts/bench_compress.py runs/FLAT                      # a run of train_lm --head flat
    python scripts/bench_compress.py runs/FLAT --calibration 1000 20000 --grouping frequency
    python scripts/bench_compress.py runs/FLAT --steps 50 200 --lr 0.001

The model is given `grouped-linear` instead of its output layer and scored on validation text; then it is
trained on for so many steps with Adam, and so is the flat model, to tell the two apart. At last both write,
taking turns. Prints two tables.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from scripts.common.command import command_line, read_flags, run_script, say
from scripts.common.lm_models import WRITING_MODES
from scripts.common.pages import table
from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, positive

if TYPE_CHECKING:  # --help must not wait for torch
    from torch import Tensor

    from lm.model import CompressedLM
    from lm.text.corpus import Tokens

NEW_TOKENS = 32


@dataclass(frozen=True)
class Config:
    """Loss after `compress_vocab`, by calibration tokens and further training steps."""

    run: tyro.conf.Positional[Path]
    """Run folder of train_lm --head flat."""
    calibration: tuple[int, ...] = (1_000, 5_000, 20_000)
    """Tokens of the training text to calibrate by."""
    grouping: tuple[str, ...] = ("clusters", "frequency")
    """Of the tokens: clusters of the old rows, frequency, index."""
    steps: tuple[int, ...] = (50, 200)
    """Further training, from the largest calibration and the first grouping."""
    lr: float = 1e-3
    """Of this training, with Adam, constant."""
    repeats: int = 5
    """Turns of each model in writing; 0 leaves it out."""
    batch_size: int = 8
    """Sequences of a step."""
    seed: int = 0
    """Decides what text is trained on."""

    def __post_init__(self) -> None:
        problems = (
            at_least(self, 1, "batch_size") + at_least(self, 0, "seed", "repeats") + positive(self, "lr")
        )
        problems += [
            f"--{name}: name one or more, each at least 1"
            for name in ("calibration", "steps")
            if min(getattr(self, name), default=0) < 1
        ]
        if not self.grouping:
            problems.append("--grouping: name one or more")
        if problems:
            raise UserError("; ".join(problems))


def ordinary(model: CompressedLM) -> Any:
    """The model as `transformers` has it, with the rows of its flat head."""
    from torch import nn
    from transformers import AutoModelForCausalLM

    head: Any = model.head
    if head.has_groups or not head.starts_from_linear or model.adapter:
        raise UserError("RUN: expected a run of train_lm --head flat, without an adapter")
    config = copy.deepcopy(model.backbone.config)
    config.tie_word_embeddings = False
    flat: Any = AutoModelForCausalLM.from_config(config)
    setattr(flat, flat.base_model_prefix, model.backbone)
    layer = nn.Linear(head.in_features, head.num_classes, bias=head.bias is not None)
    state = {"weight": head.weight} if head.bias is None else {"weight": head.weight, "bias": head.bias}
    layer.load_state_dict(state)  # a copy
    flat.set_output_embeddings(layer)
    return flat.eval()


def loss_of(model: CompressedLM, tokens: Tokens, length: int) -> float:
    """Nats a token of all of a text."""
    import torch

    total = count = 0.0
    windows = range(tokens.windows(length, partial=True))
    with torch.no_grad():
        for start in range(0, len(windows), 16):
            inputs, target = tokens.batch(windows[start : start + 16], length)
            out = model(input_ids=inputs, shift_labels=target, num_items_in_batch=1)  # a sum
            total, count = total + float(out.loss), count + int((target >= 0).sum())
    return total / count


def trained_on(model: CompressedLM, batches: Iterator[tuple[Tensor, Tensor]], steps: int, lr: float) -> None:
    """Train with Adam for so many steps."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        inputs, target = next(batches)
        model(input_ids=inputs, shift_labels=target).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def writing_times(models: dict[str, Any], ids: Tensor, new: int, repeats: int) -> list[list[str]]:
    """Lines of a table: milliseconds a token of `new` ones, with a cache, the models taking turns."""
    import torch

    lines = []
    for mode, options in WRITING_MODES.items():
        for count in (1, 32):
            prompt = ids[:1].expand(count, -1)
            times: dict[str, list[float]] = {name: [] for name in models}
            for turn in range(repeats + 1):  # the first one warms up
                for name, model in models.items():
                    began = time.perf_counter()
                    with torch.inference_mode():
                        model.generate(
                            prompt,
                            attention_mask=torch.ones_like(prompt),
                            max_new_tokens=new,
                            eos_token_id=None,  # or a text might end early
                            pad_token_id=0,
                            **options,
                        )
                    if turn:
                        times[name].append(1e3 * (time.perf_counter() - began) / new)
            flat, ours = (statistics.median(spent) for spent in times.values())
            lines.append([f"{mode}, {count}", f"{flat:.2f}", f"{ours:.2f}", f"{flat / ours:.2f}"])
    return lines


def main(config: Config) -> None:
    import torch

    from lm.compress import compress_vocab
    from lm.runs import load_run
    from lm.text.corpus import open_corpus
    from lm.text.sources import open_source
    from sqrtvocab.cache import default_cache
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.training import open_runtime

    with open_runtime("cpu", "fp32", config.seed) as runtime:
        run = load_run(config.run, "best", runtime)
        flags = run.config
        source = open_source(run.settings["data_used"], flags.valid_fraction, flags.text_column, say)
        corpus = open_corpus(source, run.tokenizer, flags.cache or default_cache(), say)
        length, counts = flags.seq_len, torch.from_numpy(corpus.train.counts)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            generator = torch.Generator().manual_seed(config.seed)
            while True:
                some = torch.randint(corpus.train.windows(length), (config.batch_size,), generator=generator)
                yield corpus.train.batch(some.tolist(), length)

        old = loss_of(run.model, corpus.validation, length)
        lines: list[list[str]] = [["flat, as it was", "", "", f"{old:.4f}", ""]]

        def note(title: str, calibration: int | None, steps: int | None, loss: float) -> None:
            cells = (f"{number:,}" if number else "" for number in (calibration, steps))
            lines.append([title, *cells, f"{loss:.4f}", f"{loss - old:+.4f}".replace("-", "−")])
            say(" ".join(lines[-1]))

        nearest: CompressedLM | None = None
        for grouping in config.grouping:
            for count in config.calibration:
                windows = range(max(1, min(count // length, corpus.train.windows(length))))
                ids = corpus.train.batch(windows, length)[0]
                made = compress_vocab(ordinary(run.model), grouping=grouping, counts=counts, calibration=ids)
                loss = loss_of(made.eval(), corpus.validation, length)
                note(f"grouped-linear, {grouping}", ids.numel(), None, loss)
                if grouping == config.grouping[0] and count == max(config.calibration):
                    nearest = made
        assert nearest is not None
        writing: list[list[str]] = []
        if config.repeats:
            old_model = ordinary(run.model)
            old_model.generation_config.eos_token_id = nearest.generation_config.eos_token_id = None
            prompt = corpus.validation.batch([0], length)[0][:, : length // 4]
            new = min(NEW_TOKENS, length - prompt.shape[1])
            writing = writing_times({"flat": old_model, "ours": nearest}, prompt, new, config.repeats)
        for title, start in (("grouped-linear, trained on", nearest), ("flat, trained on", run.model)):
            for steps in config.steps:
                model = copy.deepcopy(start)
                trained_on(model, batches(), steps, config.lr)
                note(title, None, steps, loss_of(model, corpus.validation, length))
    print(command_line())
    print(f"\nV = {run.tokenizer.vocab_size:,}, hidden {flags.hidden_size}. {describe_machine()}.\n")
    print(table(["", "calibration tokens", "further steps", "validation loss", "less flat"], lines))
    if writing:
        print(f"\nWriting {new} tokens, milliseconds each; so many texts at a time:\n")
        print(table(["", type(old_model).__name__, "grouped-linear", "times as fast"], writing))


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
