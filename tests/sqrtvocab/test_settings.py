"""The settings that all trainers share: declared once, in the order of the help, and kept as JSON."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
import tyro

import classifier.config
import classifier.presets
import lm.config
import lm.presets
from sqrtvocab.errors import UserError
from sqrtvocab.flags import flag
from sqrtvocab.heads import HEADS, FlatHead
from sqrtvocab.settings import (
    HeadFlags,
    MachineFlags,
    PresetFlag,
    RunFlags,
    StepFlags,
    parse_run_flags,
    read_config,
)

TRAINERS = [classifier.config.TrainConfig, lm.config.TrainConfig]
ALL_PRESETS = [classifier.presets.PRESETS, lm.presets.PRESETS]


@dataclass(frozen=True)
class Config(RunFlags, StepFlags, PresetFlag):
    PROGRAM: ClassVar[str] = "train_it"
    ADDED_LATER: ClassVar[dict[str, object]] = {"lr": 0.5}

    preset: Literal["plain", "fast"] = "plain"
    words: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()

    @property
    def run_name(self) -> str:
        return "it"


PRESETS = {"plain": Config(), "fast": Config(preset="fast", lr=2.0, words=("a", "b"))}


@pytest.fixture
def parse(monkeypatch):
    """`parse("--lr", 3)` is what the command makes of these flags."""

    def with_flags(*flags: object) -> Config:
        monkeypatch.setattr(sys, "argv", ["train_it", *map(str, flags)])
        return parse_run_flags(Config, PRESETS, merge={"words": lambda usual, given: given})

    return with_flags


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**PRESETS["fast"].to_json(), "torch": "2"}))
    return tmp_path


# ---- both trainers


@pytest.mark.parametrize("kind", TRAINERS)
def test_sections_stand_together_and_in_order(kind):
    """Head, data, steps, machine, run folder: what a trainer adds to a section follows the shared flags."""
    names = [field.name for field in dataclasses.fields(kind)]
    starts = [names.index(name) for name in ("preset", "head", "data", "epochs", "device", "out")]
    assert starts == sorted(starts)
    for section in (PresetFlag, HeadFlags, StepFlags, MachineFlags, RunFlags):
        shared = [field.name for field in dataclasses.fields(section)]
        start = names.index(shared[0])
        assert names[start : start + len(shared)] == shared


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_head_registered_by_the_user_is_a_choice(kind, monkeypatch):
    class Mine(FlatHead):
        pass

    with pytest.raises(UserError, match=r"--head mine: no head has this name; choose flat, .* or \S+$"):
        kind(head="mine")
    monkeypatch.setitem(HEADS, "mine", Mine)
    assert kind(head="mine").head == "mine"
    assert kind(head="mine", chunk_size=4).given_head_options() == {"chunk_size": 4}
    with pytest.raises(UserError, match="--rank is for --head grouped-low-rank, not mine"):
        kind(head="mine", rank=4)
    with pytest.raises(UserError, match="--chunk-size is for --head flat or mine, not grouped"):
        kind(head="grouped", chunk_size=4)


# ---- presets and saved runs as defaults


def test_flags_win_over_the_preset(parse):
    assert parse() == PRESETS["plain"]
    assert parse("--preset", "fast") == PRESETS["fast"]
    assert parse("--preset", "fast", "--lr", 3) == dataclasses.replace(PRESETS["fast"], lr=3.0)


def test_a_list_that_is_given_replaces_that_of_the_preset(parse):
    assert parse("--preset", "fast", "--words", "c").words == ("c",)


BY_HEAD = {"storage", "mine_at"}  # what presets set that not all heads take


@pytest.mark.parametrize(
    ("kind", "presets", "preset"),
    [(kind, presets, name) for kind, presets in zip(TRAINERS, ALL_PRESETS, strict=True) for name in presets],
)
def test_any_head_with_any_preset(kind, presets, preset, monkeypatch, capsys):
    """As the preset has it, but for what the head does not take; and nothing is left out in silence."""
    usual, bare = presets[preset].to_json(), kind().to_json()
    for head in HEADS:
        monkeypatch.setattr(sys, "argv", [kind.PROGRAM, "--preset", preset, "--head", head])
        found = parse_run_flags(kind, presets).to_json()
        changed = {name for name, value in usual.items() if name != "head" and found[name] != value}
        told = capsys.readouterr().err
        own = usual["head"]
        if changed:
            assert changed <= BY_HEAD
            assert all(found[name] == bare[name] for name in changed)
            names = " and ".join(flag(name) for name in usual if name in changed)
            assert told == (
                f"--head {head}: leaves out {names} of --preset {preset}, which are for --head {own}\n"
            )
        else:
            assert told == ""
        set_here = {name for name in BY_HEAD & set(usual) if usual[name] != bare[name]}
        assert changed == (set() if head == own else set_here)


def test_what_another_head_takes_is_refused_where_it_was_typed(monkeypatch, capsys):
    kind, presets = TRAINERS[0], ALL_PRESETS[0]
    for typed in (["--storage", "float32"], ["--mine-at", "3"]):
        argv = ["train_classifier", "--preset", "prototype", "--head", "flat", *typed]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ending:
            parse_run_flags(kind, presets)
        assert ending.value.code == 2
        line = f"train_classifier: {typed[0]} is for --head prototype, not flat\n"
        assert capsys.readouterr().err == line


def test_flags_win_over_the_run_that_is_resumed(parse, run):
    config = parse("--resume", run, "--max-steps", 7)
    assert config == dataclasses.replace(PRESETS["fast"], max_steps=7, resume=str(run))
    assert config.run_folder == run
    assert parse("--resume", run, "--words", "c").words == ("c",)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--preset", "slow"), "--preset"),
        (("--resume", "RUN", "--preset", "fast"), "--preset: RUN has its own settings; drop the flag"),
        (("--resume", "RUN", "--out", "x"), "--resume PATH continues the run in that folder: drop --out"),
        (("--resume", "RUN/none"), "--resume RUN/none: not a run folder (it has no config.json)"),
        (("--lr", 0, "--accumulate", 0), "--accumulate must be at least 1, got 0; --lr must be a positive"),
    ],
)
def test_bad_flags_are_one_line(parse, run, capsys, flags, says):
    with pytest.raises(SystemExit) as ending:
        parse(*(str(flag).replace("RUN", str(run)) for flag in flags))
    assert ending.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("train_it: ")
    assert line.count("\n") == 1
    assert says.replace("RUN", str(run)) in line


# ---- config.json


def test_settings_survive_json(run):
    assert Config.of_run(run) == PRESETS["fast"]
    assert Config.of_run(run, lr=9.0).lr == 9


def test_a_setting_added_later_may_be_missing(run):
    settings = read_config(run)
    del settings["lr"]
    assert Config.from_json(settings).lr == 0.5
    del settings["seed"]
    with pytest.raises(UserError, match="the setting 'seed' is missing"):
        Config.from_json(settings)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"words": "a"}, "the setting 'words' cannot be 'a'"),
        ({"epochs": "1", "out": 3}, "the setting 'epochs' cannot be '1'; the setting 'out' cannot be 3"),
        ({"schedule": "linear"}, "the setting 'schedule' cannot be 'linear'"),
        ({"batch_size": -1}, "--batch-size must be at least 1, got -1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(run, damage, says):
    (run / "config.json").write_text(json.dumps({**read_config(run), **damage}))
    with pytest.raises(UserError) as error:
        Config.of_run(run)
    assert str(error.value) == f"{run}/config.json: not the settings of a run of train_it: {says}"


def test_reading_the_config_of_no_run(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder \(it has no config.json\)"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="expected a JSON object, found a list"):
        read_config(tmp_path)


# ---- how long


@pytest.mark.parametrize(
    ("flags", "steps"), [({"epochs": 2}, 20), ({"epochs": 0.25}, 3), ({"epochs": 2, "max_steps": 7}, 7)]
)
def test_total_steps(flags, steps):
    assert Config(**flags).total_steps(10) == steps
