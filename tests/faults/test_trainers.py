"""`train_classifier`, `train_lm` and what reads their runs, under faults: nothing lost, nothing silent, no
traceback, no hang."""

import dataclasses
import json
import multiprocessing.util
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from injection import KILLED, Damage, Disturbed, bad_invocations, damages
from safetensors.torch import load_file

import classifier.cli
import classifier.evaluate
import classifier.train
import lm.cli
import lm.evaluate
import lm.judge.command
import lm.sample
import lm.train
import shapesgen.cli
from classifier.config import EvalConfig as ClassifierEval
from classifier.config import TrainConfig as ClassifierTrain
from lm.config import EvalConfig, JudgeConfig, SampleConfig, TrainConfig
from lm.stories.write import stories
from lm.text.tokenizer import END
from shapesgen import Recipe
from sqrtvocab.training import load_checkpoint, read_metrics

slow = pytest.mark.slow
SECONDS = 120
MEASURED = ("minutes", "memory/peak", "speed/tokens_per_s", "speed/images_per_s", "speed/data_wait_fraction")
TWELVE = [
    "--only", "shape=circle", "--only", "pattern=solid", "--only", "rotation=0", "--only", "size=huge",
    "--only", "texture=none", "--only", "opacity=1.0", "--only", "border=solid", "--images-per-class", "5",
]  # fmt: skip


@dataclasses.dataclass
class Trainer:
    """A trainer, and flags for a run of a moment that goes on if it has begun."""

    program: str
    main: Callable[[], int]
    score: Callable[[], int]
    flags: list[Any]
    scores: str  # the file that `score` writes
    cache: Path | None = None

    def argv(self, out: Path, steps: int = 2) -> list[Any]:
        return [*self.flags, "--eval-every", 1, "--max-steps", steps, "--resume", "auto", "--out", out]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text("".join(f"{story}\n{END}\n" for story in stories("train", 12)))
    return path


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of some kilobytes, and the compiled renderer loaded before any fork."""
    monkeypatch.setattr("classifier.cnn.CHANNELS", (3, 2, 2, 2))
    monkeypatch.setattr("classifier.cnn.EMBEDDING", 4)
    Recipe().render([0], [0])


@pytest.fixture(params=["train_lm", "train_classifier"])
def trainer(request: pytest.FixtureRequest, text: Path, tmp_path: Path) -> Trainer:
    if request.param == "train_classifier":
        flags = [*TWELVE, "--batch-size", 4, "--accumulate", 1, "--eval-images", 8, "--workers", 0]
        flags += ["--device", "cpu", "--schedule", "constant"]
        return Trainer(
            "train_classifier", classifier.cli.train_main, classifier.cli.eval_main, flags, "eval-test.json"
        )
    cache = tmp_path / "cache"
    flags = [
        "--data", text, "--valid-fraction", 0.2, "--tokenizer", "train:260", "--cache", cache, "--head", "flat",
        "--hidden-size", 8, "--num-layers", 1, "--num-attention-heads", 2, "--seq-len", 16, "--batch-size", 2,
        "--schedule", "constant", "--eval-tokens", 64, "--sample-every", 0, "--device", "cpu",
    ]  # fmt: skip
    return Trainer("train_lm", lm.cli.train_main, lm.cli.eval_main, flags, "eval.json", cache)


def outcome(run: Path, names: tuple[str, ...] = ("last", "best")) -> dict[str, Any]:
    """All that a run has learnt and recorded, in a form that can be compared bit for bit."""
    found: dict[str, Any] = {}
    for name in names:
        checkpoint = load_checkpoint(run, name)
        assert checkpoint is not None
        found[name] = checkpoint.state["step"], checkpoint.state["best"]
        for key, value in load_file(checkpoint.folder / "model.safetensors").items():
            found[f"{name} {key}"] = value.numpy().tobytes()
    moments = load_checkpoint(run, "last").load_training()["optimizer"]["state"]
    found["moments"] = [
        [(key, torch.as_tensor(one).tolist()) for key, one in row.items()] for row in moments.values()
    ]
    return found | {"metrics": metrics(run)}


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.name != ".lock"]


def last_line(result: Any, program: str) -> str:
    """Of a run that has failed: what it says at its end, and nothing else that is no progress."""
    assert "Traceback" not in result.err, result.err
    line = result.err.splitlines()[-1]
    assert line.startswith(f"{program}: "), result.err
    return line


# ---- kills and full disks ----


def everywhere(
    how: str, trainer: Trainer, inside: Path, every: int, operations, forked, tmp_path
) -> Iterator:
    """Disturb a run at each file operation, or every so many, and let it go on: it must end where a run that
    was left alone ends. Yields the place and the result of the disturbed run."""
    run = inside / "r"
    argv = trainer.argv(run)
    steps = operations(trainer.main, argv, inside)
    expected = outcome(run)
    for at in range(0, len(steps), every):
        if how == "full" and steps[at].startswith(("unlink", "rmdir")):
            continue
        shutil.rmtree(run)
        place = f"{how} at {at}, {steps[at]}"
        yield place, forked(Disturbed(trainer.main, inside, at, how), argv, tmp_path, {}).wait(SECONDS)
        again = forked(trainer.main, argv, tmp_path, {}).wait(SECONDS)
        assert again.code == 0, f"{place}: {again.err}"
        assert "WARNING" not in again.err, f"{place}: {again.err}"
        assert outcome(run) == expected, place
        assert drafts(run) == [], place


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=slow)])
def test_a_run_killed_anywhere_goes_on(every, trainer, inside, operations, forked, tally, tmp_path) -> None:
    tries = 0
    for place, result in everywhere("kill", trainer, inside, every, operations, forked, tmp_path):
        assert result.code == KILLED, (place, result)
        tries += 1
    tally(f"kill points of {trainer.program}", tries)


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=slow)])
def test_a_full_disk_ends_the_run_and_keeps_it(
    every, trainer, inside, operations, forked, tally, tmp_path
) -> None:
    tries = 0
    for place, result in everywhere("full", trainer, inside, every, operations, forked, tmp_path):
        assert result.code in (1, 2), (place, result)
        assert "No space left on device" in last_line(result, trainer.program), place
        tries += 1
    tally(f"full disks under {trainer.program}", tries)


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
@pytest.mark.parametrize(
    ("how", "every"),
    [("kill", 6), ("full", 6), pytest.param("kill", 1, marks=slow), pytest.param("full", 1, marks=slow)],
)
def test_tokenising_disturbed_anywhere_begins_again(
    how, every, trainer, operations, forked, tally, tmp_path
) -> None:
    cache, runs = trainer.cache, iter(range(10_000))
    cache.mkdir()

    def argv():
        return trainer.argv(tmp_path / f"r{next(runs)}", 1)

    steps = operations(trainer.main, argv(), cache)
    expected = outcome(tmp_path / "r0")
    tried = [at for at in range(0, len(steps), every) if not steps[at].startswith("unlink") or how == "kill"]
    for at in tried:
        shutil.rmtree(cache)
        cache.mkdir()
        result = forked(Disturbed(trainer.main, cache, at, how), argv(), tmp_path, {}).wait(SECONDS)
        place = f"{how} at {at}, {steps[at]}"
        if how == "kill":
            assert result.code == KILLED, (place, result)
        else:
            assert "No space left on device" in last_line(result, "train_lm"), place
        out = tmp_path / f"r{next(runs)}"
        again = forked(trainer.main, trainer.argv(out, 1), tmp_path, {}).wait(SECONDS)
        assert again.code == 0, f"{place}: {again.err}"
        assert outcome(out) == expected, place
    tally(f"tokenising disturbed ({how})", len(tried))


# ---- damage ----


@pytest.fixture
def finished(trainer: Trainer, forked, tmp_path: Path) -> Path:
    """A run of two steps."""
    run = tmp_path / "finished"
    result = forked(trainer.main, trainer.argv(run), tmp_path, {}).wait(SECONDS)
    assert result.code == 0, result.err
    return run


@pytest.mark.parametrize("count", [12, pytest.param(260, marks=slow)])
def test_damage_is_found_or_harmless(count, trainer, finished, invoke, tally, tmp_path) -> None:
    """Of every file of a run, and of the text in tokens: either the results are those of an undamaged run, or
    the file is named."""

    def go_on(run: Path) -> Any:
        return invoke(trainer.main, trainer.argv(run, 3))

    def score(run: Path) -> Any:
        return invoke(trainer.score, [run, "--device", "cpu", *more])

    more = ["--samples", 0] if trainer.program == "train_lm" else ["--workers", 0]
    sound = shutil.copytree(finished, tmp_path / "sound")
    assert go_on(sound).code == 0
    expected = outcome(sound, ("last",))
    shutil.copytree(finished, tmp_path / "scored")
    assert score(tmp_path / "scored").code == 0
    scores = json.loads((tmp_path / "scored" / trainer.scores).read_text())["loss"]
    files = sorted(path for path in finished.rglob("*") if path.is_file() and "events" not in path.name)
    if trainer.cache is not None:
        files += sorted(path for path in trainer.cache.iterdir() if path.suffix != ".lock")
    damaged = tmp_path / "damaged"
    for damage in random.Random(count).sample(
        damages(files, 4 * len(files), seed=count), min(count, 4 * len(files))
    ) * (1 + count // (4 * len(files) + 1)):
        shutil.copytree(finished, damaged)
        is_of_run = damage.path.is_relative_to(finished)
        path = damaged / damage.path.relative_to(finished) if is_of_run else damage.path
        before = Damage(path, damage.kind, damage.place).apply()
        for act in (score, go_on):
            answer = act(damaged)
            assert "Traceback" not in answer.err, (str(damage), answer.err)
            is_named = path.name in answer.err
            if answer.code:
                assert answer.code in (1, 2), (str(damage), answer)
                assert is_named, (str(damage), answer.err)
            elif act is score:
                assert json.loads((damaged / trainer.scores).read_text())["loss"] == scores, str(damage)
            else:
                found = outcome(damaged, ("last",))
                if is_named and "WARNING" in answer.err:  # lost, but said
                    found["metrics"] = expected["metrics"]
                assert found == expected, str(damage)
        path.write_bytes(before)
        shutil.rmtree(damaged)
    tally(f"files of {trainer.program} damaged", count)


def change_state(run: Path, change: Callable[[dict[str, Any]], object], is_sealed: bool) -> None:
    path = run / "last" / "state.json"
    state = json.loads(path.read_text())
    if not is_sealed:
        del state["seal"]
    change(state)
    path.write_text(json.dumps(state))


@pytest.mark.parametrize("trainer", ["train_lm"], indirect=True)
@pytest.mark.parametrize(
    ("change", "is_sealed"),
    [
        (lambda state: state.update(step=1), True),
        (lambda state: state.update(sha256={}), True),
        (lambda state: state.update(sha256={}), False),
        (lambda state: state.update(spet=state.pop("step")), True),
        (lambda state: state.update(spet=state.pop("step")), False),
        (lambda state: state.pop("best"), False),
        (lambda state: state.pop("minutes"), False),
    ],
)
def test_a_changed_state_falls_back(change, is_sealed, trainer, finished, invoke) -> None:
    change_state(finished, change, is_sealed)
    answer = invoke(trainer.main, trainer.argv(finished))
    assert answer.code == 0, answer.err
    assert f"WARNING: checkpoint {finished}/last/state.json has changed since it was written" in answer.err
    assert "last.previous, step 1" in answer.err


def test_older_checkpoints_are_read(trainer, finished, invoke, tmp_path) -> None:
    """Before there were seals and checksums of lines."""
    old = shutil.copytree(finished, tmp_path / "old")
    for path in (*old.rglob("state.json"), old / "config.json"):
        document = json.loads(path.read_text())
        del document["seal"]
        path.write_text(json.dumps(document))
    rows = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["crc"]
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (old / "order.json").exists():
        (old / "order.json").write_text(json.dumps(json.loads((old / "order.json").read_text())["order"]))
    for run in (old, finished):
        answer = invoke(trainer.main, trainer.argv(run, 3))
        assert (answer.code, "WARNING" in answer.err) == (0, False), answer.err
    assert outcome(old) == outcome(finished)


DOCUMENTS = {
    "deep": "[" * 100_000,
    "deep in an object": '{"seal": ' * 5_000,
    "almost too deep": '{"seal": "x", "a": ' + "[" * 990 + "]" * 990 + "}",
    "a list": "[]",
    "a number": "7",
    "an empty object": "{}",
    "no text": b"\xff\xfe\x00",
    "a folder": None,
}


@pytest.mark.parametrize(
    "name",
    ["config.json", "last/state.json", "best/state.json", "order.json", "tokenizer.json", "metrics.jsonl"],
)
def test_any_document_in_place_of_ours(name, trainer, finished, invoke, tally) -> None:
    path = finished / name
    if not path.exists():
        pytest.skip("not a file of this trainer")
    shutil.rmtree(finished / "last.previous")
    for what, document in DOCUMENTS.items():
        path.rmdir() if path.is_dir() else path.unlink()
        if document is None:
            path.mkdir()
        else:
            path.write_bytes(document if isinstance(document, bytes) else document.encode())
        for main, argv in (
            (trainer.main, trainer.argv(finished, 3)),
            (trainer.main, ["--resume", finished]),
            (trainer.score, [finished, "--device", "cpu"]),
        ):
            answer = invoke(main, argv)
            assert "Traceback" not in answer.err, (what, answer.err)
            reads_it = answer.code or "WARNING" in answer.err
            assert not reads_it or path.name in answer.err, (what, answer.err)
            if name == "config.json":
                assert answer.code == 2, (what, answer)
            if answer.code == 0 and name == "metrics.jsonl" and main is trainer.main:
                shutil.copytree(finished, finished.parent / "x", dirs_exist_ok=True)
    tally("documents of another kind", len(DOCUMENTS))


# ---- two at once, hangs ----


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_runs_do_not_share_a_folder(trainer, forked, tmp_path) -> None:
    out = tmp_path / "r"
    argv = [*trainer.flags, "--epochs", 10_000, "--eval-every", 2, "--resume", "auto", "--out", out]
    first = forked(trainer.main, argv, tmp_path, {})
    wait_for(lambda: (out / "last").exists())
    second = forked(trainer.main, argv, tmp_path, {}).wait(SECONDS)
    assert second.code == 2, second.err
    assert second.err.startswith(
        f"{trainer.program}: --out {out}: in use by another process ({first.pid} on "
    )
    assert len(second.err.splitlines()) == 1
    first.kill(signal.SIGKILL)
    first.wait()
    after = forked(trainer.main, [*argv, "--max-steps", 1], tmp_path, {}).wait(SECONDS)  # at once
    assert after.code == 0, after.err


def test_two_runs_begun_together(trainer, together, tmp_path) -> None:
    for turn in range(3):
        results = together(trainer.main, [trainer.argv(tmp_path / f"r{turn}")] * 2)
        for result in results:
            assert result.code == 0 or last_line(result, trainer.program).count("another process"), result.err
        assert 0 in [result.code for result in results]
        assert [row["step"] for row in metrics(tmp_path / f"r{turn}")] == [1, 1, 2, 2]


def test_a_run_folder_that_is_taken_away(trainer, forked, tmp_path) -> None:
    out = tmp_path / "r"
    argv = [*trainer.flags, "--epochs", 10_000, "--eval-every", 5, "--out", out]
    process = forked(trainer.main, argv, tmp_path, {})
    wait_for(lambda: (out / "last").exists())
    out.rename(tmp_path / "elsewhere")
    result = process.wait(SECONDS)
    assert result.code == 1, result
    assert last_line(result, trainer.program).endswith(
        f"{out}: the run folder is gone; nothing can be saved any more"
    )
    assert not out.exists()
    assert load_checkpoint(tmp_path / "elsewhere", "last").state["step"] >= 5


def ended_as_by_the_interpreter(main: Callable[[], int]) -> Callable[[], int]:
    """`main`, and what Python does before a process ends: it joins the processes that `multiprocessing` has
    started. (The forked processes of the tests leave without it.)"""

    def run() -> int:
        code = main()
        multiprocessing.util._exit_function()
        return code

    return run


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_damaged_image_ends_the_command_and_its_workers(command, forked, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("classifier.data._check_labels", lambda images, config: None)  # which would find it
    images, run = tmp_path / "images", tmp_path / "r"
    assert (
        forked(shapesgen.cli.main, ["render", "--out", images, *TWELVE, "--workers", 1], tmp_path, {})
        .wait()
        .code
        == 0
    )
    train = [
        *TWELVE,
        "--data",
        images,
        "--batch-size",
        4,
        "--accumulate",
        1,
        "--device",
        "cpu",
        "--max-steps",
        3,
    ]
    train += ["--eval-images", 4, "--out", run, "--resume", "auto"]
    if command == "eval":
        assert forked(classifier.cli.train_main, [*train, "--workers", 0], tmp_path, {}).wait().code == 0
    shard = next((images / "data").glob("train-*" if command == "train" else "test-*"))
    Damage(shard, "flip", 0.5).apply()
    main, argv = {
        "train": (classifier.cli.train_main, [*train, "--workers", 2]),
        "eval": (classifier.cli.eval_main, [run, "--device", "cpu", "--workers", 2]),
    }[command]
    result = forked(ended_as_by_the_interpreter(main), argv, tmp_path, {}).wait(30)
    assert result.code == 1, result
    assert f"--data {images}: data/{shard.name}: " in last_line(result, f"{command}_classifier")


# ---- ranks ----


def start_ranks(trainer: Trainer, forked, tmp_path: Path, *flags: object) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        forked(
            trainer.main,
            [*trainer.flags, *flags],
            tmp_path,
            {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=slow), 1])
def test_a_killed_rank_ends_the_other(victim, trainer, forked, tally, tmp_path) -> None:
    out = tmp_path / "r"
    ranks = start_ranks(trainer, forked, tmp_path, "--epochs", 10_000, "--eval-every", 2, "--out", out)
    wait_for(lambda: (out / "last.previous").exists())
    ranks[victim].kill(signal.SIGKILL)
    result = ranks[1 - victim].wait(60)
    ranks[victim].wait()
    assert result.code == 1, result
    speaker = trainer.program if victim else f"{trainer.program}: rank 1"
    assert last_line(result, speaker) == (
        f"{speaker}: the connection to another rank is lost: it has failed or was killed; go on with --resume auto"
    )
    assert load_checkpoint(out, "last").state["step"] >= 2
    tally("ranks killed", 1)


@slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_ends_the_other(victim, trainer, forked, tally, tmp_path) -> None:
    out = tmp_path / "r"
    ranks = start_ranks(trainer, forked, tmp_path, "--epochs", 10_000, "--eval-every", 2, "--out", out)
    wait_for(lambda: (out / "last.previous").exists())
    ranks[victim].kill(signal.SIGSTOP)
    began = time.monotonic()
    result = ranks[1 - victim].wait(60)
    assert time.monotonic() - began < 45
    ranks[victim].kill()
    ranks[victim].wait()
    assert result.code == 1, result
    assert (
        f"rank {1 - victim}: rank {victim} has given no sign of life for 24 s" in result.err.splitlines()[-1]
    )
    assert "Traceback" not in result.err
    assert load_checkpoint(out, "last").state["step"] >= 2
    tally("ranks stopped", 1)


def test_a_rank_may_be_busy_alone(trainer, forked, monkeypatch, tmp_path) -> None:
    """Longer than the patience with a rank that is silent."""
    from sqrtvocab.training import ranks, run

    monkeypatch.setattr(ranks, "BEAT", 0.05)
    monkeypatch.setattr(ranks, "PATIENCE", 1.0)
    save = run.Run.save_last

    def save_slowly(self: Any) -> None:
        time.sleep(3 if self.runtime.is_main else 0)
        save(self)

    monkeypatch.setattr(run.Run, "save_last", save_slowly)
    out = tmp_path / "r"
    results = [
        rank.wait(60) for rank in start_ranks(trainer, forked, tmp_path, "--max-steps", 2, "--out", out)
    ]
    assert [result.code for result in results] == [0, 0], results


# ---- bad invocations ----

COMMANDS: dict[str, tuple[type, Callable[[], int]]] = {
    "train_lm": (TrainConfig, lm.cli.train_main),
    "eval_lm": (EvalConfig, lm.cli.eval_main),
    "sample_lm": (SampleConfig, lm.cli.sample_main),
    "judge_lm": (JudgeConfig, lm.cli.judge_main),
    "train_classifier": (ClassifierTrain, classifier.cli.train_main),
    "eval_classifier": (ClassifierEval, classifier.cli.eval_main),
}


@pytest.fixture(scope="module")
def runs(text: Path, forked, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run for each kind of command."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("share", [0.03, pytest.param(1.0, marks=slow)])
def test_bad_invocations(share, command, text, invoke, forked, tally, monkeypatch, tmp_path) -> None:
    """Every flag with values that its type does not allow, or that are beyond reason."""
    config, main = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("lm.judge.chat._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("lm.text.sources.tinystories_problem", lambda: "no network in tests")
    monkeypatch.setattr("lm.text.sources.BUILT_IN_STORIES", 20)
    tiny = {
        "lm": ["--data", text, "--tokenizer", "train:260", "--cache", tmp_path / "cache", "--hidden-size", 8,
               "--num-layers", 1, "--num-attention-heads", 2, "--seq-len", 32, "--batch-size", 2],
        "classifier": [*TWELVE, "--batch-size", 4, "--accumulate", 1, "--workers", 0],
    }[command.partition("_")[2]]  # fmt: skip
    tiny = [*map(str, tiny), "--device", "cpu", "--max-steps", "1"]
    trainer = {"lm": lm.cli.train_main, "classifier": classifier.cli.train_main}[command.partition("_")[2]]
    assert forked(trainer, [*tiny, "--out", tmp_path / "run"], tmp_path, {}).wait(SECONDS).code == 0
    quick = {
        "eval_lm": ["--samples", "1", "--max-tokens", "3", "--tokens", "64"],
        "sample_lm": ["--max-tokens", "3"],
        "judge_lm": ["--max-tokens", "3"],
        "eval_classifier": ["--images", "4", "--workers", "0"],
    }
    base = tiny if command.startswith("train") else ["RUN", "--device", "cpu", *quick[command]]
    every = list(bad_invocations(config, tmp_path / "paths"))
    chosen = random.Random(0).sample(every, max(8, int(share * len(every))))
    for number, bad in enumerate(chosen):
        words = list(base)
        if bad.flag in words:
            at = words.index(bad.flag)
            del words[at : at + 2]
        if not bad.flag:
            words.remove("RUN")
        words = [word.replace("RUN", str(tmp_path / "run")) for word in words]
        if command.startswith("train") and bad.flag not in ("--out", "--resume"):
            words += ["--out", str(tmp_path / f"out-{number}")]
        answer = invoke(main, [*words, *bad.argv])
        assert "Traceback" not in answer.err, (bad, answer.err)
        assert not bad.certain or answer.code == 2, (bad, answer)
        if answer.code == 2:
            assert len(answer.err.splitlines()) == 1, (bad, answer.err)
            assert answer.err.startswith(f"{command}: "), (bad, answer.err)
            assert not bad.certain or bad.flag in answer.err, (bad, answer.err)
        elif answer.code:  # values that are fine by themselves: a judge that does not answer
            assert answer.err.splitlines()[-1].startswith(f"{command}: "), (bad, answer.err)
    tally(f"bad invocations of {command}", len(chosen))
