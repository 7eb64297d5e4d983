"""`--help` in sections, within the terminal; default run folders; `--only` beside a preset."""

import dataclasses
import json
import sys

import pytest

import classifier.config
import lm.config
import shapesgen.cli
from classifier.presets import PRESETS
from shapesgen.attributes import ATTRIBUTES, AttributeSpace
from sqrtvocab.flags import Flags, flag
from sqrtvocab.help import answer_help, answer_help_of, help_lines
from sqrtvocab.settings import parse_run_flags

COMMANDS = {
    "train_classifier": classifier.config.TrainConfig,
    "eval_classifier": classifier.config.EvalConfig,
    "predict_classifier": classifier.config.PredictConfig,
    "export_classifier": classifier.config.ExportConfig,
    "add_classes": classifier.config.AddConfig,
    "train_lm": lm.config.TrainConfig,
    "eval_lm": lm.config.EvalConfig,
    "sample_lm": lm.config.SampleConfig,
    "judge_lm": lm.config.JudgeConfig,
    **{f"shapesgen {name}": kind for name, kind in shapesgen.cli.COMMANDS.items()},
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_flag_is_explained_within_the_terminal(command, width):
    kind = COMMANDS[command]
    lines = help_lines(kind, command, width)
    assert max(map(len, lines)) <= width
    assert len(kind.EXAMPLES) >= 3
    for field in dataclasses.fields(kind):
        names = (flag(field.name), field.name.upper())
        flagged = [i for i, line in enumerate(lines) if line[:2] == "  " and line[2:3] != " "]
        (place,) = [i for i in flagged if lines[i].split()[0].rstrip(",") in names]
        is_attribute = field.name in ATTRIBUTES[1:]  # of `describe`: the first speaks for all eight
        assert is_attribute or lines[place + 1].startswith("      "), f"{field.name} is not explained"
    in_sections = issubclass(kind, Flags)
    assert {"model", "data", "output"} <= set(lines) if in_sections else "flags" in lines


def test_sections_and_the_defaults_of_a_preset(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_classifier", "--preset", "quickstart", "--help"])
    with pytest.raises(SystemExit) as ended:
        answer_help(classifier.config.TrainConfig, "train_classifier", PRESETS["quickstart"])
    assert ended.value.code == 0
    sections = dict.fromkeys(("model", "data", "training", "machine", "output"), "")
    current = None
    for line in capsys.readouterr().out.splitlines():
        current = line if line in sections else current
        if current:
            sections[current] += line + "\n"
    assert "--backbone" in sections["model"]
    assert "--head" in sections["model"]
    assert "--only" in sections["data"]
    assert "(default: 240)" in sections["training"]
    assert "--seed" in sections["training"]
    assert "--device" in sections["machine"]
    assert "--out" in sections["output"]


def test_of_several_commands_or_of_one(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    for arguments, expected in (
        (["--help"], list(shapesgen.cli.COMMANDS)),
        (["render", "-h"], ["--overwrite"]),
    ):
        with pytest.raises(SystemExit) as ended:
            answer_help_of(shapesgen.cli.COMMANDS, "shapesgen", shapesgen.cli.ABOUT, arguments)
        lines = capsys.readouterr().out.splitlines()
        assert ended.value.code == 0
        assert max(map(len, lines)) <= 50
        assert all(any(line.startswith(f"  {name}") for line in lines) for name in expected)
    assert answer_help_of(shapesgen.cli.COMMANDS, "shapesgen", "", ["render"]) is None


def test_an_indented_paragraph_is_examples():
    @dataclasses.dataclass
    class Nothing:
        """Not shown."""

    text = "It does `this`.\n\n    command --flag   # on a rainy day\n    command\n\nAnd that.\n"
    lines = help_lines(Nothing, "command", 60, text=text)
    assert lines[2:9] == [
        "It does this.",
        "",
        "examples",
        "  command --flag  # on a rainy day",
        "  command",
        "",
        "And that.",
    ]
    assert "Not shown." not in lines


def test_runs_with_another_rate_or_seed_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = lm.config.TrainConfig()
    other = dataclasses.replace(config, lr=0.004, seed=2)
    assert str(config.run_folder) == "runs/lm-gpt2-128-grouped-linear-lr0.008"
    # What has no suffix stays what it was when 0.001 was the default.
    assert str(dataclasses.replace(config, lr=0.001).run_folder) == "runs/lm-gpt2-128-grouped-linear"
    assert str(other.run_folder) == "runs/lm-gpt2-128-grouped-linear-lr0.004-seed2"
    # One that was begun before folders were named so is found again, by the same settings only.
    older = tmp_path / "runs" / "lm-gpt2-128-grouped-linear"
    older.mkdir(parents=True)
    (older / "config.json").write_text(json.dumps({"lr": 0.004, "seed": 2}))
    again = dataclasses.replace(other, resume="auto")
    assert again.run_folder.name == older.name
    assert dataclasses.replace(again, seed=3).run_folder.name == f"{older.name}-lr0.004-seed3"
    assert other.run_folder.name == f"{older.name}-lr0.004-seed2"  # a new run is not put there
    (tmp_path / other.run_folder).mkdir()
    assert again.run_folder == other.run_folder


def test_only_keeps_what_a_preset_says_of_other_attributes(monkeypatch):
    argv = ["train_classifier", "--preset", "quickstart", "--only", "shape=star", "--only", "rotation=0,60"]
    monkeypatch.setattr(sys, "argv", argv)
    merge = {"only": AttributeSpace.merge_only}
    config = parse_run_flags(classifier.config.TrainConfig, PRESETS, merge=merge)
    assert config.space().radices == (1, 2, 2, 12, 5, 1, 1, 1)
    assert config.space().describe_only() == (
        "shape star; pattern solid, striped; rotation 0, 60; texture none; opacity 1.0; border solid"
    )
    assert AttributeSpace.full().describe_only() == ""
