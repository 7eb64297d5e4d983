"""Checkpoints that survive kill -9, power cuts and flipped bits.

A checkpoint is a folder in the run folder:

    last/            the newest state, to resume from (last.previous/ is the one before)
    best/            the weights that scored best
      model.safetensors   the weights
      training.pt         optimiser and gradient scaler (in `last` only)
      state.json          step, scores, what the trainer adds; the SHA-256 of every other file, and of itself

It is written under a temporary name, flushed to the disk and renamed, so a folder that has its final name is
whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from sqrtvocab.atomic import SEAL, fsync, read_sealed, sealed, write_json, write_text
from sqrtvocab.errors import RunError, UserError

_NEEDED = {"step", "minutes", "best"}  # in the state of a trainer's checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files have been verified."""

    folder: Path
    state: dict[str, Any]

    def load_weights(self, model: nn.Module) -> None:
        """Copy the weights into `model` (not wrapped by DDP or compile).

        Raises:
            UserError: if the names or shapes are those of another model, or what its modules have noted.
        """
        path, here = self.folder / "model.safetensors", _notes(model)
        with safe_open(path, "pt") as file:
            noted = file.metadata() or {}
        for name in here.keys() & noted.keys():
            if here[name] != noted[name]:
                words = f"{name} is {noted[name]} there and {here[name]} here"
                raise UserError(f"{path} is of another model: {words}")
        try:
            load_model(model, path)
        except (RuntimeError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise UserError(f"checkpoint {self.folder} is of another model: {problem[:300]}") from error

    def load_training(self) -> dict[str, Any]:
        """The `training` mapping given to `save_checkpoint`, with tensors on the CPU."""
        return torch.load(self.folder / "training.pt", map_location="cpu", weights_only=True)


def save_checkpoint(
    run: Path,
    name: str,
    model: nn.Module,
    state: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    documents: Mapping[str, object] | None = None,
) -> None:
    """Write the checkpoint `run`/`name`; with `training` the one it replaces is kept as `name`.previous.

    Args:
        model: the bare module (not wrapped by DDP or compile). Tied weights are stored once.
        state: JSON-able; `load_checkpoint` returns it.
        training: optimiser and scaler state dicts, needed to resume.
        documents: further files to put beside the weights, by file name: a text, or what becomes JSON.

    Raises:
        RunError: if it cannot be written (the disk is full); says which checkpoint is left.
    """
    draft, final, previous = (run / part for part in (f".{name}.tmp", name, f"{name}.previous"))
    try:
        _write(draft, model, state, training, documents or {})
        # Two renames, not one: a folder cannot be replaced. A crash between them leaves `previous`, which is
        # whole.
        if final.exists():
            shutil.rmtree(previous, ignore_errors=True)
            final.rename(previous)
        draft.rename(final)
        fsync(run)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save reports a full disk as the second
        if not run.is_dir():
            raise RunError(f"{run}: the run folder is gone; nothing can be saved any more") from error
        shutil.rmtree(draft, ignore_errors=True)
        kept = next((folder for folder in (run / "last", final, previous) if folder.is_dir()), None)
        left = "there was none before it" if kept is None else f"the checkpoint before it is kept: {kept}"
        problem = str(error).partition("\n")[0]
        raise RunError(f"cannot write {final} (is the disk full?): {problem}; {left}") from error
    if training is None:
        shutil.rmtree(previous, ignore_errors=True)


def _write(
    draft: Path,
    model: nn.Module,
    state: Mapping[str, Any],
    training: Mapping[str, Any] | None,
    documents: Mapping[str, object],
) -> None:
    shutil.rmtree(draft, ignore_errors=True)  # of a process that died here
    draft.mkdir()  # in the run folder: one that was taken away in mid-run must not come back as half of one
    save_model(model, str(draft / "model.safetensors"), metadata={"format": "pt", **_notes(model)})
    (draft / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    if training is not None:
        torch.save(dict(training), draft / "training.pt")
    for file_name, document in documents.items():
        if isinstance(document, str):
            write_text(draft / file_name, document)
        else:
            write_json(draft / file_name, document)
    files = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
    for file_name in files:
        fsync(draft / file_name)
    write_json(draft / "state.json", sealed({**state, "sha256": files}))  # flushes the folder too


def _notes(model: nn.Module) -> dict[str, str]:
    """What modules keep beside their tensors, as a file of tensors can carry it: a head's V, which the shapes
    do not tell."""
    metadata: dict[str, dict[str, Any]] = model.state_dict()._metadata  # type: ignore[attr-defined]
    return {
        f"{module}.{name}".removeprefix("."): str(value)
        for module, notes in metadata.items()
        for name, value in notes.items()
        if name != "version"  # torch's own
    }


def load_checkpoint(run: Path, name: str) -> Checkpoint | None:
    """The verified checkpoint `run`/`name`, or None if there is none.

    A damaged one is reported on stderr and the one before it is taken instead.

    Raises:
        UserError: if there are checkpoints but all are damaged.
    """
    damaged: list[str] = []
    for folder in (run / name, run / f"{name}.previous"):
        if not folder.is_dir():
            continue
        try:
            checkpoint = _verified(folder)
        except (UserError, OSError) as error:
            damaged.append(str(error))
            continue
        if damaged and os.environ.get("RANK", "0") == "0":
            step = checkpoint.state.get("step", "?")
            print(f"WARNING: checkpoint {damaged[0]}. Going back to {folder}, step {step}", file=sys.stderr)
        return checkpoint
    if damaged:
        raise UserError(f"no usable checkpoint: {'; '.join(damaged)}")
    return None


def _verified(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`; a UserError that names the damaged file if there is one."""
    path = folder / "state.json"
    if not path.exists():
        raise UserError(f"{path} is missing")
    state = read_sealed(path)
    files: Any = state.get("sha256")
    is_whole = isinstance(files, dict) and "model.safetensors" in files
    if SEAL not in state:  # an older one: what a run needs to continue must at least be there
        is_whole = is_whole and set(state) >= _NEEDED and type(state["step"]) is int
    if not is_whole:
        raise UserError(f"{path} has changed since it was written")
    for file_name, digest in files.items():
        file = folder / Path(file_name).name
        if not file.is_file():
            raise UserError(f"{file} is missing")
        if _sha256(file) != digest:
            raise UserError(f"{file} has changed since it was written")
    return Checkpoint(folder, state)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
