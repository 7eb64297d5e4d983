"""One run: begun or resumed, how far it has come, what it keeps in its folder and says about itself."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sqrtvocab.atomic import require_space
from sqrtvocab.settings import RunFlags
from sqrtvocab.training.checkpoint import save_checkpoint
from sqrtvocab.training.logbook import METRICS, Logbook
from sqrtvocab.training.run_folder import RunFolder, begin_run, require_same_run
from sqrtvocab.training.runtime import Runtime
from sqrtvocab.training.vocab_parallel import own_optimizer_state, whole_heads, whole_optimizer_state

MAY_CHANGE = ("lr", "schedule", "warmup_steps")  # on resuming: a lower --lr after a loss that was not finite
Document = str | Mapping[str, Any] | Sequence[Any] | Callable[[Mapping[str, Any], Mapping[str, Any]], str]


@dataclass
class Run:
    """A run in its folder. Made by `open_run`; only rank 0 writes."""

    folder: Path
    settings: Mapping[str, Any]
    """The flags and what was resolved from them, as in `config.json`."""
    total_steps: int
    resume_command: str
    runtime: Runtime
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    documents: Mapping[str, Document]
    """Files that go into each checkpoint, by name."""
    changes: list[str] = field(default_factory=list)
    """Which settings differ from those that the run had so far, as phrases."""
    space: int = 0
    """Bytes that its checkpoints may take."""
    step: int = 0
    """Optimiser steps done."""
    recorded: int = 0
    """Bytes of `metrics.jsonl` when the run came to that step before."""
    minutes: float = 0.0
    """Spent on training, evaluations left out."""
    best: Any = None
    """The best score so far, in the trainer's own form; None if there is none yet."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last evaluation."""

    def introduce(self, book: Logbook, facts: Mapping[str, str]) -> None:
        """Say how the run begins, a line for each fact."""
        lines = {
            "run": f"{self.folder}, from step {self.step:,}",
            "device": self.runtime.describe(),
            **facts,
            **({"disk": f"up to {self.space / 1e9:.1f} GB of checkpoints"} if self.space > 1e9 else {}),
            "watch": f"tensorboard --logdir {self.folder.parent}",
            **({"changed": ", ".join(self.changes)} if self.changes else {}),
        }
        for name, value in lines.items():
            book.say(f"{name:<11}{value}")

    def has_nothing_to_do(self, book: Logbook) -> bool:
        """Whether all steps are done; if so, says it and closes `book`."""
        if self.step < self.total_steps:
            return False
        how = " (with --schedule constant)" if self.settings["schedule"] == "cosine" else ""
        book.say(
            f"nothing to do: the run has its {self.total_steps:,} steps; "
            f"--epochs or --max-steps can add more{how}"
        )
        book.close()
        return True

    def save_last(self) -> None:
        """Keep everything that is needed to go on from here."""
        optimizer = whole_optimizer_state(self.optimizer, self.model)
        self._save("last", {"optimizer": optimizer, "scaler": self.scaler.state_dict()})

    def save_best(self) -> None:
        """Keep the weights as those that scored best."""
        self._save("best", None)

    def _save(self, name: str, training: Mapping[str, Any] | None) -> None:
        with whole_heads(self.model):
            if self.runtime.is_main:
                self._write(name, training)

    def _write(self, name: str, training: Mapping[str, Any] | None) -> None:
        path = self.folder / METRICS
        state = {
            "step": self.step,
            "minutes": self.minutes,
            "best": self.best,
            "metrics": self.metrics,
            "recorded": path.stat().st_size if path.exists() else 0,
        }
        documents = {
            file_name: document(self.settings, state) if callable(document) else document
            for file_name, document in self.documents.items()
        }
        save_checkpoint(self.folder, name, self.model, state, training, documents)

    def close(self, book: Logbook, reason: str | None, hint: str) -> None:
        """Say how the run ended, and close `book`.

        Args:
            reason: why it was to stop early, if it was.
            hint: what can be done with it now.
        """
        if reason is not None and self.step < self.total_steps:
            book.say(f"stopped after step {self.step:,}: {reason}; continue with: {self.resume_command}")
        book.say(f"saved in {self.folder}; {hint}")
        book.close()


def open_run(
    folder: RunFolder,
    config: RunFlags,
    resolved: Mapping[str, Any],
    same: Collection[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    runtime: Runtime,
    documents: Mapping[str, Document] | None = None,
) -> Run:
    """Begin a new run, or load the one in `folder` to continue it; write its settings to `config.json`.

    Args:
        resolved: what was found out from the flags and the data, as plain settings; `total_steps` among them.
        same: the settings that a resumed run must share with its beginning.
        documents: files that go into each checkpoint, by name: a text, what becomes JSON, or a function that
            makes one of the settings and the checkpoint's state.

    Raises:
        UserError: if the run in `folder` is another one or of another model, or if the disk is too full.
    """
    total_steps = resolved["total_steps"]
    found = {"computed_on": runtime.describe(), "torch": torch.__version__}
    settings = {**config.to_json(), **resolved, **found}
    command = config.PROGRAM if runtime.world_size == 1 else f"torchrun ... -m {config.MODULE}"
    command += f" --resume {shlex.quote(str(folder.path))}"
    run = Run(folder.path, settings, total_steps, command, runtime, model, optimizer, scaler, documents or {})
    if folder.checkpoint is not None:
        saved, state = folder.saved, folder.checkpoint.state
        require_same_run(saved, settings, same, folder.path)
        run.changes = [
            f"{name} from {saved.get(name)} to {settings[name]}"
            for name in MAY_CHANGE
            if saved.get(name) != settings[name]
        ]
        run.step, run.minutes, run.best = state["step"], state["minutes"], _if_finite(state["best"])
        run.recorded = state.get("recorded", 0)  # older versions did not keep it
        folder.checkpoint.load_weights(model)
        training = folder.checkpoint.load_training()
        optimizer.load_state_dict(own_optimizer_state(training["optimizer"], optimizer, model))
        if training["scaler"]:  # empty if the run has not been in float16 so far
            scaler.load_state_dict(training["scaler"])
    # At most there are `last`, the one before it and a draft, each with Adam's two moments, and `best` twice.
    here = sum(parameter.numel() for parameter in model.parameters())
    run.space = 11 * 4 * int(resolved.get("parameters", here))
    require_space(run.folder, run.space + (64 << 20))
    runtime.barrier()  # all ranks have looked before the first one writes
    if runtime.is_main:
        begin_run(run.folder, settings)
    return run


def _if_finite(score: Any) -> Any:
    """A score from `state.json`; None, which any score beats, unless it is made of finite numbers."""
    numbers = score if isinstance(score, list) else [score]
    return score if all(number is not None and math.isfinite(number) for number in numbers) else None
