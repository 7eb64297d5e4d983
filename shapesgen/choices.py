"""The words a user chooses between. Light to import, for the command line."""

from __future__ import annotations

from typing import Literal, get_args

RotationCue = Literal["notch", "none"]
Sampling = Literal["balanced", "random"]
Split = Literal["train", "validation", "test"]
Format = Literal["parquet", "webdataset", "folder"]

ROTATION_CUES: tuple[RotationCue, ...] = get_args(RotationCue)
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
SPLITS: tuple[Split, ...] = get_args(Split)
FORMATS: tuple[Format, ...] = get_args(Format)
