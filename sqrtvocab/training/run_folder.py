"""A run folder is used by one run: a new run never overwrites one, and a resumed run must be the same run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from sqrtvocab.errors import UserError
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint
from sqrtvocab.training.runtime import Runtime


def find_checkpoint(run: Path, resume: str | None) -> Checkpoint | None:
    """The checkpoint to continue from, or None to start at step 0.

    Args:
        run: the run folder (`--out`).
        resume: None for a new run; "auto" to continue if there is something to continue; else it must be
            there.

    Raises:
        UserError: if `run` is a file, if it is in use and `resume` is None, if there is nothing to resume at
            a path named explicitly, or if every checkpoint is damaged.
    """
    if run.exists() and not run.is_dir():
        raise UserError(f"--out {run}: is a file, not a folder")
    if resume is None:
        if run.exists() and any(run.iterdir()):
            raise UserError(
                f"--out {run}: there is a run already; continue it with --resume auto or name another --out"
            )
        return None
    if run.exists() and any(run.iterdir()) and not (run / "config.json").exists():
        raise UserError(f"{run}: holds other things than a run (it has no config.json)")
    checkpoint = load_checkpoint(run, "last")
    if checkpoint is None and resume != "auto":
        raise UserError(f"--resume {resume}: no checkpoint `last` in that folder")
    return checkpoint


def require_same_checkpoint(checkpoint: Checkpoint | None, run: Path, runtime: Runtime) -> None:
    """Check that all ranks go on from the same step: without a shared disk they would train different models.

    Raises:
        UserError: on every rank, if they do not.
    """
    step = 0 if checkpoint is None else int(checkpoint.state["step"])
    lowest, highest = (int(reduce(torch.tensor(step))) for reduce in (runtime.min, runtime.max))
    if lowest != highest:
        raise UserError(
            f"--resume: in {run} some ranks find a checkpoint of step {lowest} and others of step {highest}; "
            "all machines must see the same folder, undamaged"
        )


def read_config(run: Path) -> dict[str, Any]:
    """The settings that the run in folder `run` was started with.

    Raises:
        UserError: if `run` is no run folder, or its settings are damaged.
    """
    path = run / "config.json"
    if not path.is_file():
        raise UserError(f"{run}: no run folder (it has no config.json)")
    try:
        settings = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path}: not the settings of a run, which are a JSON object")
    return settings


def require_same(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], keys: Collection[str], run: Path
) -> None:
    """Check that a run to be resumed has the settings asked for.

    Raises:
        UserError: naming every setting of `keys` that differs, with both values.
    """
    differences = [
        f"{key.replace('_', ' ')} is {saved.get(key)!r} there and {wanted.get(key)!r} here"
        for key in keys
        if saved.get(key) != wanted.get(key)
    ]
    if differences:
        raise UserError(f"--resume: {run} is another run: {'; '.join(differences)}")
