"""Bad invocations of the trainers' commands, made from the types of their flags; and standard streams that
are closed, full or of another encoding."""

import dataclasses
import importlib
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from injection import Bad, bad_invocations
from PIL import Image
from trainers import SECONDS, paint, train_classifier, train_lm

# Imported here, so that the forked processes need not.
import classifier.evaluate
import classifier.export
import classifier.predict
import classifier.train  # noqa: F401
import lm.evaluate
import lm.judge.command
import lm.sample
import lm.train  # noqa: F401

slow = pytest.mark.slow

# What makes a command short, or must be given: RUN is a finished run, PICTURES a folder. A command that is
# not named here is called with RUN, if it takes a run, and must then succeed.
SHORT: dict[str, list[str]] = {
    "train_lm": ["--max-steps", "1"],
    "eval_lm": ["RUN", "--samples", "1", "--max-tokens", "3"],
    "sample_lm": ["RUN", "--max-tokens", "3"],
    "judge_lm": ["RUN", "--max-tokens", "3"],
    "train_classifier": ["--max-steps", "1"],
    "eval_classifier": ["RUN", "--images", "4", "--workers", "0"],
    "predict_classifier": ["RUN", "PICTURES", "--workers", "0"],
    "export_classifier": ["RUN", "--images", "2"],
    "add_classes": ["RUN", "PICTURES", "--workers", "0"],
}


class Command(NamedTuple):
    config: type
    """Its flags."""
    main: Callable[[], int]
    short: list[str]


class _SeenError(BaseException):
    """Carries what `tyro.cli` was asked for."""


def flags_of(main: Callable[[], int]) -> type:
    """The dataclass that a command reads its flags into."""

    def seen(kind: type, **options: object) -> None:
        raise _SeenError(kind)

    with mock.patch("tyro.cli", seen), mock.patch.object(sys, "argv", ["command"]):
        try:
            main()
        except _SeenError as found:
            return found.args[0]
    raise AssertionError(f"{main} reads no flags")


def all_commands() -> dict[str, Command]:
    """Each command that the project installs, but `shapesgen`, whose tests are in a file of their own."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    commands = {}
    for name, place in sorted(project["scripts"].items()):
        if name != "shapesgen":
            module, function = place.split(":")
            main = getattr(importlib.import_module(module), function)
            config = flags_of(main)
            fields = {field.name for field in dataclasses.fields(config)}
            short = SHORT.get(name, ["RUN"] if "run" in fields else [])
            if "device" in fields:
                short = [*short, "--device", "cpu"]
            commands[name] = Command(config, main, short)
    return commands


COMMANDS = all_commands()


@pytest.fixture
def run(request: pytest.FixtureRequest, small_models: None, text: Path, forked, tmp_path: Path) -> Any:
    """`run(command)`: a finished run for it, and the flags of a training of a moment."""

    def make(command: str) -> tuple[Path, list[str]]:
        trainer = train_lm(text, tmp_path / "cache") if command.endswith("lm") else train_classifier()
        out = tmp_path / "run"
        result = forked(trainer.main, trainer.argv(out, 1), tmp_path, {}).wait(SECONDS)
        assert result.code == 0, result.err
        return out, list(map(str, trainer.flags))

    return make


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that nobody reaches, and little to read instead of TinyStories."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("lm.judge.chat._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("lm.text.sources.tinystories_problem", lambda: "no network in tests")
    monkeypatch.setattr("lm.text.sources.BUILT_IN_STORIES", 20)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("share", [0.02, pytest.param(1.0, marks=slow)])
def test_bad_invocations(
    share, command, run, no_network, invoke, apart, tally, monkeypatch, tmp_path
) -> None:
    """One line and exit code 2 for what cannot be meant; a value that can be meant after all works."""
    monkeypatch.chdir(tmp_path)
    config, main, short = COMMANDS[command]
    finished, tiny = run(command)
    is_trainer = command.startswith("train")
    base = [*(tiny if is_trainer else []), *short]
    (tmp_path / "PICTURES").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "PICTURES" / "one.png")
    every = list(bad_invocations(config, tmp_path / "paths"))
    chosen = random.Random(1).sample(every, max(5, int(share * len(every))))

    def call(words: Sequence[str], out: str) -> Any:
        if is_trainer and not {"--out", "--resume"} & {word.partition("=")[0] for word in words}:
            words = [*words, "--out", out]
        return invoke(main, [word.replace("RUN", str(finished)) for word in words])

    def table() -> None:
        # But for the judge, whom nobody reaches, and for a run whose classes are no examples to add to.
        if share == 1 and command not in ("judge_lm", "add_classes"):
            sound = call(base, "sound")
            assert sound.code == 0, f"say in SHORT how {command} is called: {sound.err}"
        for number, bad in enumerate(chosen):
            answer = call([*without(base, bad.flag or "RUN"), *bad.argv], f"out-{number}")
            if not is_proper(command, bad, answer):
                print(bad.argv, answer.code, answer.err[-500:])

    assert apart(table) == ""
    tally(f"bad invocations of {command}", len(chosen))


def is_proper(command: str, bad: Bad, answer: Any) -> bool:
    """Whether a command has answered a bad value as it should."""
    if answer.code == 0:
        return not bad.certain
    lines = [line for line in answer.err.splitlines() if not line.startswith("WARNING")]
    is_told = (
        lines[-1].startswith(f"{command}: ") and len(lines[-1]) < 2_100 and "Traceback" not in answer.err
    )
    if answer.code != 2:  # a run that has begun, such as with a judge that does not answer
        return is_told and not bad.certain
    return is_told and len(lines) == 1 and (not bad.certain or bad.flag in lines[0])


def without(words: list[str], flag: str) -> list[str]:
    """The words without a flag and its value, as often as it is there, or without a positional argument."""
    kept, rest = [], iter(words)
    for word in rest:
        if word != flag:
            kept.append(word)
        elif word.startswith("--"):
            next(rest)
    return kept


BEYOND_REASON = [
    ("train_lm", ["--epochs", "1e300"], "--epochs must be at most"),
    ("train_lm", ["--max-steps", "9" * 50], "--max-steps must be at most"),
    ("train_lm", ["--warmup-steps", "9" * 50], "--warmup-steps must be at most"),
    (
        "train_lm",
        ["--hidden-size", "200000000"],
        "--hidden-size 200000000 --num-layers 1: training takes",
    ),
    ("train_lm", ["--data", "stories:_"], "--data stories:_: no such file or folder; expected"),
    ("train_lm", ["--data", "stories:" + "9" * 5000], "expected at most 1,000,000,000,000 stories"),
    ("train_lm", ["--tokenizer", "train:_"], "--tokenizer train:_: expected train:N with N from 257"),
    ("train_lm", ["--tokenizer", "train:" + "9" * 5000], "expected train:N with N from 257"),
    ("train_classifier", ["--max-steps", "9" * 50], "--max-steps must be at most"),
]


@pytest.mark.parametrize(("command", "flags", "says"), BEYOND_REASON)
def test_numbers_beyond_reason(command, flags, says, text, small_models, invoke, tmp_path) -> None:
    trainer = train_lm(text, tmp_path / "cache") if command == "train_lm" else train_classifier()
    answer = invoke(trainer.main, [*trainer.flags, "--max-steps", 1, *flags, "--out", tmp_path / "r"])
    assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
    assert says in answer.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("head", ["grouped-linear", "sampled"])  # sampled: sparse gradients
@pytest.mark.parametrize("trainer", ["train_lm", "train_classifier"], indirect=True)
def test_a_batch_that_no_memory_holds(trainer, head, optimizer, invoke, monkeypatch, tmp_path) -> None:
    """The size is that of a simulated step. (A batch is never larger than the data.)"""
    kind = ["--head", head, "--optimizer", optimizer]
    flags = [*trainer.flags, *kind, "--max-steps", 1, "--batch-size", 10**9]
    for free in (3_000_000, 30_000):  # the step does not fit; not even what it takes at the very least
        monkeypatch.setattr("sqrtvocab.training.memory.free_memory", lambda free=free: free)
        answer = invoke(trainer.main, [*flags, "--out", tmp_path / "r"])
        assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
        assert "GB of memory, 0.0 GB are free" in answer.err
    assert not (tmp_path / "r").exists()
    monkeypatch.setattr("sqrtvocab.training.memory.free_memory", lambda: None)  # not known
    assert invoke(trainer.main, [*flags, "--out", tmp_path / "r"]).code == 0


# ---- standard streams ----

STREAMS = [
    ("lm.train --help >/dev/full", 1, "train_lm: standard output: No space left on device\n"),
    ("lm.train --help | true; exit ${PIPESTATUS[0]}", None, ""),
    ("lm.train --help >&-", 1, "train_lm: standard output: Bad file descriptor\n"),
    ("lm.train --frobnicate 2>&-", 2, ""),
    ("lm.train --frobnicate 2>/dev/full", 2, ""),
    ("classifier.train --help >/dev/full", 1, "train_classifier: standard output: No space left on device\n"),
    ("classifier.train --help | true; exit ${PIPESTATUS[0]}", None, ""),
    ("classifier.train --lr x >&- 2>&-", 2, ""),
]


@slow
@pytest.mark.parametrize(("words", "code", "says"), STREAMS)
def test_streams_that_are_full_or_closed(words: str, code: int | None, says: str, tally) -> None:
    command = ["bash", "-c", f"{sys.executable} -m {words}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == code or (code is None and done.returncode in (0, 141)), done
    assert done.stderr == says, done
    tally("standard streams full or closed", 1)


def onto(number: int, make: Callable[[], int], main: Callable[[], int]) -> Callable[[], int]:
    """`main` with another file as stdout or stderr; flushes both at its end, as the interpreter does."""

    def run() -> int:
        os.dup2(make(), number)
        before = sys.stdout, sys.stderr  # kept, for to lose one is to close its descriptor
        setattr(sys, {1: "stdout", 2: "stderr"}[number], os.fdopen(number, "w"))
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
        del before
        return code

    return run


def pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(
    "command",
    [
        "sample_lm",
        *(pytest.param(name, marks=slow) for name in ("eval_lm", "eval_classifier", "predict_classifier")),
    ],
)
def test_a_reader_that_leaves(command, run, forked, tally, tmp_path) -> None:
    _, main, short = COMMANDS[command]
    places = {"RUN": run(command)[0], "PICTURES": paint(tmp_path / "PICTURES", ("one",), 3)}
    argv = [places.get(word, word) for word in short]
    gone = forked(onto(1, pipe_without_reader, main), argv, tmp_path, {}).wait(SECONDS)
    assert gone.code == 141, gone
    assert "Traceback" not in gone.err, gone
    assert command not in gone.err, gone
    full = forked(onto(1, full_device, main), argv, tmp_path, {}).wait(SECONDS)
    assert full.code == 1, full
    assert full.err.splitlines()[-1] == f"{command}: standard output: No space left on device", full
    mute = forked(onto(2, full_device, main), argv, tmp_path, {}).wait(SECONDS)
    assert mute.code in (0, 1), mute
    tally("standard streams full or closed", 3)


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
def test_a_trainer_that_nobody_listens_to(trainer, forked, tmp_path) -> None:
    gone = forked(onto(2, pipe_without_reader, trainer.main), trainer.argv(tmp_path / "r"), tmp_path, {})
    assert gone.wait(SECONDS).code == 141
    full = forked(onto(2, full_device, trainer.main), trainer.argv(tmp_path / "r"), tmp_path, {})
    assert full.wait(SECONDS).code == 1


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, marks=slow),
        pytest.param({"PYTHONIOENCODING": "ascii"}, marks=slow),
        pytest.param({"PYTHONIOENCODING": "ascii:strict"}, marks=slow),
    ],
)
@slow
def test_any_locale(env: dict[str, str], run, tmp_path: Path) -> None:
    finished, _ = run("sample_lm")
    words = ["-c", "from lm.cli import sample_main; raise SystemExit(sample_main())", str(finished)]
    words += ["--prompt", "Grüße, 🦊", "--max-tokens", "3", "--device", "cpu", "--seed", "0"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, env=os.environ | env, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, b""), done
    expected = "Grüße, 🦊"
    if "ascii" in env.get("PYTHONIOENCODING", "") or "PYTHONUTF8" in env:  # the encoding of the output
        expected = expected.encode("ascii", "backslashreplace").decode()
    assert done.stdout.startswith(expected.encode()), done
    helped = subprocess.run(
        [sys.executable, "-m", "lm.train", "--help"], capture_output=True, env=os.environ | env
    )
    assert (helped.returncode, helped.stderr) == (0, b""), helped
