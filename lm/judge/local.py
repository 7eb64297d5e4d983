"""A judge that needs no server: a causal language model of `transformers` in a folder."""

from __future__ import annotations

import json
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from lm.judge.chat import Message
from sqrtvocab.errors import UserError

LONGEST_ANSWER = 512  # tokens


class LocalJudge:
    """The model in `folder`, which answers one question at a time, as its own generation settings say.

    The conversation is written as its chat template has it; for a model without one, as lines of a dialogue.
    An answer depends on the conversation, the seed, and how often the same was asked before: where the model
    samples, asking again may bring another answer.

    Raises:
        UserError: the folder holds no such model.
    """

    def __init__(self, folder: Path, device: torch.device, seed: int = 0) -> None:
        self.folder, self.seed = folder, seed
        logging.disable_progress_bar()
        try:  # nothing is fetched, and no code from the folder is run
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # of any kind, from three libraries
            detail = " ".join(str(error).split())[:200]
            raise UserError(f"--judge {folder}: not a model that transformers can load ({detail})") from error
        self.model = model.to(device).eval()
        self._asked: Counter[int] = Counter()
        self._lock = threading.Lock()  # the command asks from several threads

    def ask(self, messages: Sequence[Message]) -> str:
        """The model's answer to a conversation.

        Raises:
            UserError: the conversation leaves no room in the model's context.
        """
        ids = self._ids(messages)  # [1, L]
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        room = LONGEST_ANSWER if context is None else min(LONGEST_ANSWER, context - ids.shape[1])
        if room < 1:
            raise UserError(
                f"--judge {self.folder}: it looks at {context} tokens, and a question has {ids.shape[1]}; "
                "take another model, or a lower --max-tokens"
            )
        question = zlib.crc32(json.dumps(list(messages)).encode())
        with self._lock, torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(self.seed + question + self._asked[question])
            self._asked[question] += 1
            said = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=room)
        return str(self.tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True))

    def _ids(self, messages: Sequence[Message]) -> torch.Tensor:
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
            encoded = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")  # it has them
        else:
            lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            encoded = self.tokenizer("\n\n".join([*lines, "Assistant:"]), return_tensors="pt")
        return encoded["input_ids"].to(self.model.device)
