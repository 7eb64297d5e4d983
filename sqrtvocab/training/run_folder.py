"""A run folder is used by one run: a new run never overwrites one, and a resumed run must be the same run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sqrtvocab.errors import UserError
from sqrtvocab.settings import RunFlags, read_config
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint
from sqrtvocab.training.runtime import Runtime


@dataclass(frozen=True)
class RunFolder:
    """A run folder before the run is opened: empty, or with a run to continue."""

    path: Path
    checkpoint: Checkpoint | None = None
    """What to continue from; None to begin at step 0."""
    saved: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run to continue; empty for a new one."""


def look_into_folder(config: RunFlags, runtime: Runtime) -> RunFolder:
    """What is in the run folder that `--out` and `--resume` name. Changes nothing.

    Raises:
        UserError: if the folder is in use, or the run to continue is missing, damaged or of something else;
            see also `find_checkpoint` and `require_same_checkpoint`.
    """
    path = config.run_folder
    checkpoint = find_checkpoint(path, config.resume)
    require_same_checkpoint(checkpoint, path, runtime)
    if checkpoint is None:
        return RunFolder(path)
    config.of_run(path)  # raises if the settings are not of this program, or damaged
    return RunFolder(path, checkpoint, {**config.ADDED_LATER, **read_config(path)})


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


def require_same_run(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], keys: Collection[str], run: Path
) -> None:
    """Check that a run to be resumed has the settings asked for, and that its learning rates stay as planned.

    Raises:
        UserError: naming every setting of `keys` that differs, with both values.
    """

    def differences(names: Collection[str]) -> str:
        return "; ".join(
            f"{name.replace('_', ' ')} is {saved.get(name)!r} there and {wanted.get(name)!r} here"
            for name in names
            if saved.get(name) != wanted.get(name)
        )

    if found := differences(keys):
        raise UserError(f"--resume: {run} is another run: {found}")
    is_cosine = saved.get("schedule") == wanted.get("schedule") == "cosine"
    if is_cosine and (found := differences(["total_steps"])):
        raise UserError(
            f"--resume: {run} follows a cosine that cannot be stretched: {found}; "
            "give the same --epochs and --max-steps, or --schedule constant"
        )
