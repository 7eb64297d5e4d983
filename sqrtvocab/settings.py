"""The flags that every trainer has: declared once, checked once, and kept as JSON beside the run.

Imports no torch: `--help` must not wait for it. A trainer's settings inherit from the sections below, or from
sections of its own that extend them. Dataclasses collect their fields from the last base to the first, so a
trainer names the sections in the reverse of the order that its `--help` shows.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_type_hints

import tyro

from sqrtvocab.atomic import SEAL, read_sealed
from sqrtvocab.errors import UserError, shortened
from sqrtvocab.flags import (
    Device,
    Flags,
    Precision,
    Schedule,
    at_least,
    flag,
    from_plain,
    one_line_errors,
    peek_flags,
    positive,
    seed_fits,
    to_plain,
)
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.help import answer_help

HeadName = Annotated[str, tyro.conf.arg(metavar="{" + ",".join(HEADS) + "}")]
Modulation = Literal["scale-shift", "film", "both"]


@dataclass(frozen=True)
class PresetFlag(Flags):
    """First of all."""

    SECTION: ClassVar[str] = ""

    preset: str = "default"
    """Where the defaults of all other flags come from; flags given with it win. With another --head than its
    own, what only its own takes is left out."""


@dataclass(frozen=True)
class HeadFlags(Flags):
    """The output head and its groups."""

    SECTION: ClassVar[str] = "model"
    OPTIONS: ClassVar[tuple[str, ...]] = ("modulation", "rank", "chunk_size", "samples", "hashes", "buckets")
    """Flags that are keyword arguments of a head's class."""

    head: HeadName = "grouped"
    """Output head. grouped: the paper's, one layer that all groups share. flat: the ordinary one.
    grouped-linear: one linear layer for each group. grouped-low-rank: a mixture of a few layers that all
    groups share. adaptive: adaptive softmax. factored: one softmax for each attribute, where the classes are
    made of attributes. sampled: the flat one, trained on drawn classes. mach: several softmaxes over random
    buckets. prototype: a class is the mean of what was shown of it, learnt from
    pairs."""
    grouping: str = "index"
    """Which classes share a group."""
    num_groups: int | None = None
    """Number of groups; floor(√V) by default."""
    modulation: Modulation | None = None
    """How a group makes the shared layer of --head grouped its own: scale and shift after it (the paper's,
    and the default), before it (film), or both."""
    rank: int | None = None
    """How many layers the groups of --head grouped-low-rank share; 16 by default."""
    chunk_size: int | None = None
    """Let --head flat work on this many images or tokens at a time: exactly the same loss, in less memory."""
    samples: int | None = None
    """How many classes --head sampled draws for a batch; 1,024 by default."""
    hashes: int | None = None
    """How many times --head mach deals the classes to buckets; 16 by default."""
    buckets: int | None = None
    """Buckets of each hash of --head mach; 4·√V by default."""
    prior: bool = False
    """Start the head's biases at the log frequencies of the classes in the training data."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(
            self, 1, "num_groups", "rank", "chunk_size", "samples", "hashes", "buckets"
        )
        if self.head not in HEADS:
            return [*problems, f"--head {self.head}: no head has this name; choose {_either(HEADS)}"]
        for name, takers in self.not_for(self.head).items():
            problems.append(f"{flag(name)} is for --head {_either(takers)}, not {self.head}")
        return problems

    def not_for(self, head: str) -> dict[str, list[str]]:
        """Flags that are set and that `head` does not take -> the heads that do. Imports torch only if there
        may be any."""
        options = self.given_head_options()
        takers = {option: [name for name, kind in HEADS.items() if kind.takes(option)] for option in options}
        return {option: names for option, names in takers.items() if head not in names}

    def given_head_options(self) -> dict[str, Any]:
        """The options of the head's class that were given as flags."""
        options = {name: getattr(self, name) for name in self.OPTIONS}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class StepFlags(Flags):
    """How long to train, on how much at a time, at what learning rate."""

    SECTION: ClassVar[str] = "training"

    epochs: float = 1.0
    """Times through the training data."""
    max_steps: int | None = None
    """Stop after this many optimiser steps."""
    max_minutes: float | None = None
    """Stop this call after this many minutes: finish the step, evaluate, save."""
    batch_size: int = 32
    """Images or sequences of one micro-batch on one device."""
    accumulate: int = 1
    """Micro-batches whose gradients are added up in one step. A step sees batch-size x accumulate x processes
    images or sequences."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """sgd is plain SGD. Its --lr is what suits --head flat, often 1 or more: layers of other heads that need
    a smaller one get it."""
    lr: float = 1e-3
    """Peak learning rate."""
    schedule: Schedule = "constant"
    """Learning rate after the warm-up: constant, or falling to zero along a cosine."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from zero."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "batch_size", "accumulate", "max_steps")
        problems += at_least(self, 0, "warmup_steps")
        return problems + positive(self, "epochs", "lr", "max_minutes")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps of the whole run."""
        return min(math.ceil(self.epochs * steps_per_epoch), self.max_steps or sys.maxsize)


@dataclass(frozen=True)
class MachineFlags(Flags):
    """Where and how to compute."""

    SECTION: ClassVar[str] = "machine"

    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    compile: bool = False
    """Compile the model with torch.compile (worth it on a GPU; takes a minute at the start)."""
    vocab_parallel: bool = False
    """Under torchrun, split the classes of the head over the ranks: an output layer that is too large for one
    GPU. For flat, grouped-linear and prototype."""

    def problems(self) -> list[str]:
        both = ["--vocab-parallel: not with --compile"] if self.vocab_parallel and self.compile else []
        return super().problems() + both


# What the name of a run's folder leaves out. Not the defaults: it must mean the same when these change.
UNTOLD = {"lr": 1e-3, "seed": 0}


@dataclass(frozen=True)
class RunFlags(Flags):
    """The run folder, what goes into it, and how its settings come out of it again."""

    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {"training": ("seed",)}
    PROGRAM: ClassVar[str]
    """The command that these settings belong to."""
    MODULE: ClassVar[str]
    """The same as a module, for torchrun."""
    ADDED_LATER: ClassVar[Mapping[str, Any]] = {}
    """Settings that older runs lack -> what they were in those."""

    out: Path | None = None
    """Run folder; by default one in runs/ that is named after the main settings, with the learning rate and
    the seed where they are not 0.001 and 0. TensorBoard overlays the runs of one parent."""
    resume: str | None = None
    """auto: continue the run in --out if it has begun, else begin. A path: continue the run in that folder,
    with its settings unless other flags are given."""
    seed: int = 0
    """Decides everything random: the initial weights, the order of the data, images drawn on the fly."""
    eval_every: int = 500
    """Evaluate and save every so many steps; also at the end."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "eval_every") + at_least(self, 0, "seed")
        if self._resumed is not None and self.out is not None and self._resumed != self.out:
            problems.append("--resume PATH continues the run in that folder: drop --out")
        return problems + seed_fits(self)

    @property
    def run_folder(self) -> Path:
        """The folder that holds everything about this run."""
        if chosen := self._resumed or self.out:
            return chosen
        older = Path("runs") / self.run_name  # as it was called before learning rate and seed were told
        told = {name: vars(self)[name] for name, untold in UNTOLD.items() if vars(self)[name] != untold}
        named = older.parent / "-".join([older.name, *(f"{name}{value}" for name, value in told.items())])
        is_older = self.resume is not None and not named.exists() and self._has_begun_in(older)
        return older if is_older else named

    def _has_begun_in(self, folder: Path) -> bool:
        """Whether a run with this learning rate and seed lies there."""
        try:
            settings = read_config(folder)
        except UserError:
            return False
        return all(settings.get(name) == vars(self)[name] for name in ("lr", "seed"))

    @property
    def run_name(self) -> str:
        """The name of the run folder by default, without learning rate and seed."""
        raise NotImplementedError

    @property
    def _resumed(self) -> Path | None:
        return None if self.resume in (None, "auto") else Path(str(self.resume))

    def to_json(self) -> dict[str, Any]:
        """All settings as plain JSON values."""
        return {name: to_plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, settings: Mapping[str, Any], **changes: Any) -> Self:
        """The inverse of `to_json`; further keys in `settings` are ignored.

        Raises:
            UserError: for settings that were not written by `to_json`.
        """
        added = {name: to_plain(value) for name, value in cls.ADDED_LATER.items()}
        settings, kinds = {**added, **settings}, get_type_hints(cls)
        values, problems = {}, []
        for name in (field.name for field in dataclasses.fields(cls)):
            if name not in settings:
                raise UserError(f"the setting '{name}' is missing")
            try:
                values[name] = from_plain(settings[name], kinds[name])
            except TypeError:
                problems.append(f"the setting '{name}' cannot be {settings[name]!r}")
        if problems:
            raise UserError("; ".join(problems))
        return cls(**{**values, **changes})

    @classmethod
    def of_run(cls, run: Path, **changes: Any) -> Self:
        """The settings of the run in folder `run`.

        Raises:
            UserError: if there is no run, or one of something else; names the file and the setting.
        """
        settings = read_config(run)
        try:
            return cls.from_json(settings, **changes)
        except UserError as error:
            path = run / "config.json"
            raise UserError(f"{path}: not the settings of a run of {cls.PROGRAM}: {error}") from error


Config = TypeVar("Config", bound=RunFlags)


def parse_run_flags(
    kind: type[Config],
    presets: Mapping[str, Config],
    *,
    merge: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    default: Config | None = None,
) -> Config:
    """The flags of a trainer. Their defaults are those of `--preset`, or of the run in `--resume PATH`.

    Args:
        default: what they are without either.
            Of all these what only another head than the one of `--head` takes is left out, and a line on
            standard error says so.
        merge: fields whose flag may be repeated -> what to make of the preset's value and of that given. tyro
            alone would add the one to the other.

    Raises:
        SystemExit: after one line that names the flag or file at fault.
    """
    merge = merge or {}
    with one_line_errors(kind.PROGRAM):
        given = peek_flags("--preset", "--resume", "--head", *map(flag, merge))
        default = presets.get(str(given["--preset"]), default or kind())  # a wrong name is tyro's to report
        if given["--resume"] not in (None, "auto"):
            run = Path(str(given["--resume"]))
            if given["--preset"] is not None:
                raise UserError(f"--preset: {run} has its own settings; drop the flag")
            try:
                default = kind.of_run(run, resume=str(run), out=None)
            except UserError as error:
                raise UserError(f"--resume {error}") from error
        answer_help(kind, kind.PROGRAM, default)
        default, left_out = _without_other_heads_flags(default, given["--head"])
        kept = {name: getattr(default, name) for name in merge if given[flag(name)]}
        empty: dict[str, Any] = dict.fromkeys(kept, ())
        config = tyro.cli(kind, prog=kind.PROGRAM, default=dataclasses.replace(default, **empty))
        merged = {name: merge[name](value, getattr(config, name)) for name, value in kept.items()}
        config = dataclasses.replace(config, **merged)
    if left_out and os.environ.get("RANK", "0") == "0":
        print(left_out, file=sys.stderr, flush=True)
    return config


def _without_other_heads_flags(default: Config, head: str | None) -> tuple[Config, str]:
    """`default` without what `head` does not take, and a line about that; "" if there is nothing."""
    if not isinstance(default, HeadFlags) or head not in HEADS:
        return default, ""  # a wrong name is for the settings to report
    names = list(default.not_for(head))
    usual = {field.name: field.default for field in dataclasses.fields(default)}
    bare = dataclasses.replace(default, **{name: usual[name] for name in names})
    source = f"--preset {vars(default)['preset']}" if default.resume is None else default.resume
    flags = " and ".join(map(flag, names))
    line = f"--head {head}: leaves out {flags} of {source}, which are for --head {default.head}"
    return bare, line if names else ""


def command_line(
    first: Sequence[str], settings: Mapping[str, Any], usual: RunFlags, left_out: Collection[str]
) -> str:
    """The call that settings came from: `first`, and a flag for each that is not as in `usual`.

    Args:
        left_out: what says where to compute and to save, which others need not know.
    """
    parts = list(first)
    for name, value in usual.to_json().items():
        wanted = settings[name]
        if name in left_out or wanted is None or wanted == value:
            continue
        if isinstance(wanted, bool):
            parts.append(flag(name) if wanted else flag(f"no_{name}"))
        else:
            items = wanted if isinstance(wanted, list) else [wanted]
            parts += [word for item in items for word in (flag(name), public(item))]
    return shlex.join(parts)


def public(value: object) -> str:
    """A value for the eyes of others: of a path on this machine its name."""
    return Path(str(value)).name if Path(str(value)).is_absolute() else str(value)


def read_config(run: Path) -> dict[str, Any]:
    """The settings that the run in folder `run` was started with, as plain JSON values.

    Raises:
        UserError: if `run` is no run folder, or its settings are damaged.
    """
    path = run / "config.json"
    try:
        if not path.exists():
            raise UserError(f"{run}: not a run folder (it has no config.json)")
        settings = read_sealed(path, f"; if the change was meant, remove its field {SEAL!r}")
    except OSError as error:  # a loop of links, a name that is too long
        raise UserError(f"{shortened(run)}: no run folder ({error.strerror})") from error
    settings.pop(SEAL, None)
    return settings


def _either(names: Mapping[str, Any] | list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
