"""A run folder is used by one run: a new run never overwrites one, and a resumed run must be the same run."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from sqrtvocab.atomic import PROBE, SEAL, read_sealed, sealed, write_json
from sqrtvocab.errors import UserError, shortened
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint
from sqrtvocab.training.run_lock import LOCK, lock_folder
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
    _require_folder(run)
    things = [path.name for path in run.iterdir() if not _is_unfinished(path.name)] if run.is_dir() else []
    if resume is None and things:
        raise UserError(
            f"--out {run}: there is a run already; continue it with --resume auto or name another --out"
        )
    if things and "config.json" not in things:
        raise UserError(f"{run}: holds other things than a run (it has no config.json)")
    if run.is_dir() and _is_first():
        lock_folder(run)
    checkpoint = load_checkpoint(run, "last")
    if checkpoint is None and resume != "auto":
        raise UserError(f"--resume {resume}: no checkpoint `last` in that folder")
    return checkpoint


def begin(run: Path, settings: Mapping[str, Any]) -> None:
    """Make `run` the folder of a run: from now on `--resume auto` goes on with it.

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


def read_config(run: Path) -> dict[str, Any]:
    """The settings that the run in folder `run` was started with.

    Raises:
        UserError: if `run` is no run folder, or its settings are damaged.
    """
    path = run / "config.json"
    try:
        if not path.exists():
            raise UserError(f"{run}: no run folder (it has no config.json)")
        settings = read_sealed(path, f"; if the change was meant, remove its field {SEAL!r}")
    except OSError as error:  # a loop of links, a name that is too long
        raise UserError(f"{shortened(run)}: no run folder ({error.strerror})") from error
    settings.pop(SEAL, None)
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
