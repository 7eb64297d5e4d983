"""A run folder is used by one run: a new run never overwrites one, and a resumed run must be the same run."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sqrtvocab.atomic import PROBE, sealed, write_json
from sqrtvocab.errors import UserError, shortened
from sqrtvocab.settings import RunFlags, read_config
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint
from sqrtvocab.training.run_lock import LOCK, lock_folder
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
        UserError: if `run` cannot be a folder, if another process trains in it, if it holds a run and
            `resume` is None, if there is nothing to resume at a path named explicitly, or if every checkpoint
            is damaged.
    """
    _require_folder(run)
    things = [path.name for path in run.iterdir() if not _is_unfinished(path.name)] if run.is_dir() else []
    if resume is None and things:
        raise UserError(
            f"--out {run}: there is a run already; continue it with --resume auto or name another --out"
        )
    if things and "config.json" not in things:
        raise UserError(f"{run}: holds something other than a run (it has no config.json)")
    if run.is_dir() and _is_first():
        lock_folder(run)
    if resume is None:
        return None
    checkpoint = load_checkpoint(run, "last")
    if checkpoint is None and resume != "auto":
        raise UserError(f"--resume {resume}: no checkpoint `last` in that folder")
    return checkpoint


def begin_run(run: Path, settings: Mapping[str, Any]) -> None:
    """Make `run` the folder of a run: from now on `--resume auto` continues it.

    Raises:
        UserError: another process has begun a run there since `find_checkpoint` looked.
    """
    run.mkdir(parents=True, exist_ok=True)
    if lock_folder(run) and (run / "config.json").exists():
        raise UserError(f"--out {run}: another process has begun a run there; name another --out")
    write_json(run / "config.json", sealed(settings))


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _is_unfinished(name: str) -> bool:
    """Whether a file is only what is there before `config.json`: a run killed so early has not begun."""
    return name in (LOCK, ".config.json.tmp") or name.startswith(PROBE)


def _require_folder(run: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(run.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        if run.is_symlink():
            raise UserError(f"--out {run}: a link to {run.readlink()}, which does not exist") from error
        return  # it can be made, or `require_space` says why not
    except OSError as error:  # a loop of links, a name that is too long
        raise UserError(f"--out {shortened(run)}: {error.strerror}") from error
    if not is_folder:
        raise UserError(f"--out {run}: is a file, not a folder")


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
