"""`sample_lm`: a story on the terminal, as it comes."""

from __future__ import annotations

import random
import sys

import torch

from lm.config import SampleConfig
from lm.generate import stream_story
from lm.runs import load_run
from sqrtvocab.flags import as_text
from sqrtvocab.training import UserError, open_runtime


def sample(config: SampleConfig) -> None:
    """Run `sample_lm`: stories go to stdout, whatever else there is to say to stderr.

    Raises:
        UserError: for input that cannot be used.
    """
    seed = random.randrange(2**31) if config.seed is None else config.seed
    with open_runtime(config.device, "fp32", seed) as runtime:
        run = load_run(config.run, config.checkpoint, runtime)
        for number in range(config.count):
            if number:
                print("\n---\n")
            torch.manual_seed((seed + number) % 2**63)
            try:
                stream_story(
                    run.model,
                    run.tokenizer,
                    as_text(config.prompt),
                    _write,
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                    top_k=config.top_k,
                )
            except UserError as error:
                raise UserError(f"--prompt: {error}") from error
            print(flush=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
