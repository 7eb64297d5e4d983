"""`train_classifier`: what it writes, and that neither a kill nor more ranks change what it learns."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from classifier.config import TrainConfig
from classifier.data import class_counts
from classifier.evaluate import evaluate
from classifier.train import train as train_in_this_process
from sqrtvocab import HEADS
from sqrtvocab.training import RunError, UserError, load_checkpoint, read_metrics

# Clocks and memory differ from run to run.
MEASURED = ("minutes", "speed/images_per_s", "speed/data_wait_fraction", "memory/peak")


def records(run):
    return [
        {key: value for key, value in record.items() if key not in MEASURED}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def weights(run, name="last"):
    return load_file(run / name / "model.safetensors")


# ---- what it writes


def test_the_run_folder_tells_everything(finished):
    names = {path.name for path in finished.iterdir()}
    assert {name for name in names if not name.startswith(("events", "eval"))} == {
        ".lock",
        "config.json",
        "metrics.jsonl",
        "projector",
        "projector_config.pbtxt",
        "best",
        "last",
        "last.previous",
    }
    config = json.loads((finished / "config.json").read_text())
    assert config["head"] == "grouped"
    assert config["num_classes"] == 48
    assert config["images_per_step"] == 8
    rows = records(finished)
    assert [row["step"] for row in rows] == [1, 2, 2, 3, 4, 4]
    assert [row["images"] for row in rows] == [8, 16, 16, 24, 32, 32]
    assert rows[0]["loss/train"] == pytest.approx(math.log(48), abs=0.5)
    assert rows[0]["loss/group"] + rows[0]["loss/member"] == pytest.approx(rows[0]["loss/train"])
    assert rows[2]["accuracy/ceiling"] == 1.0


def test_tensorboard_shows_it(finished):
    events = EventAccumulator(str(finished))
    events.Reload()
    tags = events.Tags()
    scalars = {
        *(f"loss/{name}" for name in ("train", "group", "member", "validation")),
        *(f"accuracy/{name}" for name in ("overall", "group", "member_given_group", "top5", "ceiling")),
        *(
            f"attribute/{name}"
            for name in ("shape", "pattern", "rotation", "colour", "size", "texture", "opacity", "border")
        ),
        *("speed/images_per_s", "speed/data_wait_fraction", "memory/peak", "learning_rate"),
        *("gradient/norm", "calibration/error", "accuracy/mean_over_classes"),  # all are equally frequent
    }
    pictures = {
        *("examples", "confused_pairs", "calibration/reliability", "confusion/groups"),
        *("confusion/shape", "confusion/colour"),  # the others have one option
    }
    assert set(tags["scalars"]) == {f"images: {tag}" for tag in scalars}
    assert set(tags["images"]) == {f"images: {tag}" for tag in pictures}
    assert tags["histograms"] == ["images: probability/true_group"]
    for tag in scalars | pictures | {"probability/true_group"}:
        assert events.SummaryMetadata(f"images: {tag}").summary_description, tag
    assert {"images: config/text_summary", "images: groups/text_summary"} < set(tags["tensors"])
    assert "custom_scalars__config__" in tags["tensors"]
    assert set(events.PluginTagToContent("hparams")) >= {"_hparams_/session_start_info"}
    rows = {row["step"]: row["loss/train"] for row in records(finished) if "loss/train" in row}
    for event in events.Scalars("images: loss/train"):
        assert event.value == pytest.approx(
            rows[event.step], rel=1e-6
        )  # the same numbers as in metrics.jsonl


@pytest.mark.parametrize("head", ["flat", "grouped-linear", "grouped-low-rank", "adaptive", "factored"])
def test_every_head_trains_and_reports_the_same(train, tmp_path, finished, head):
    out = tmp_path / head
    result = train("--head", head, "--prior", "--max-steps", 1, "--out", out)
    assert result.code == 0, result.err
    assert "flat head, for comparison 24,624" in result.err
    assert set(records(out)[-1]) == set(records(finished)[-1])


def test_the_start_says_what_will_happen(train, tmp_path):
    result = train("--grouping", "index", "--num-groups", 5, "--max-steps", 1, "--out", tmp_path / "r")
    assert "48 classes, 48 training images drawn on the fly" in result.err
    assert "5 of at most 10 classes (index)" in result.err
    assert "float32 (" in result.err
    assert "1 of 8 images; 6 an epoch" in result.err
    assert f"tensorboard --logdir {tmp_path}" in result.err


# ---- going on


def test_sgd_keeps_the_rates_of_the_head_when_resumed(train, tmp_path):
    flags = ["--optimizer", "sgd", "--lr", 0.5, "--out", tmp_path / "r"]
    assert train(*flags, "--max-steps", 1).code == 0
    result = train(*flags, "--max-steps", 2, "--resume", "auto")
    assert result.code == 0, result.err
    groups = torch.load(tmp_path / "r" / "last" / "training.pt")["optimizer"]["param_groups"]
    # 48 even classes in 6 groups.
    assert [group["lr"] / 0.5 for group in groups] == pytest.approx([1.0, 6 / 48])


def test_kill_9_and_resume_ends_where_an_uninterrupted_run_ends(train, start_train, tmp_path, wait_for_step):
    """Two epochs of six steps; killed in the second, between two checkpoints."""
    flags = ["--epochs", 2, "--eval-every", 4, "--schedule", "cosine"]
    assert train(*flags, "--out", tmp_path / "whole").code == 0
    process = start_train(*flags, "--out", tmp_path / "killed")
    wait_for_step(tmp_path / "killed", 7)
    process.kill(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL
    assert load_checkpoint(tmp_path / "killed", "last").state["step"] in (4, 8)
    result = train(*flags, "--out", tmp_path / "killed", "--resume", "auto")
    assert result.code == 0, result.err
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    for name in ("last", "best"):
        expected = weights(tmp_path / "whole", name)
        for key, value in weights(tmp_path / "killed", name).items():
            assert torch.equal(value, expected[key]), key
    training = [load_checkpoint(tmp_path / out, "last").load_training() for out in ("whole", "killed")]
    for index, expected in training[0]["optimizer"]["state"].items():
        for key, value in expected.items():
            assert torch.equal(value, training[1]["optimizer"]["state"][index][key])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_the_run_cleanly(start_train, tmp_path, number, wait_for_step):
    """The workers must outlive it, or the trainer could not finish its step."""
    out = tmp_path / "r"
    process = start_train("--epochs", 1000, "--workers", 1, "--out", out)
    wait_for_step(out, 2)
    process.kill_group(number)
    result = process.wait()
    assert result.code == 0, result.err
    assert f"{number.name} received: finishing the step, " in result.err
    last = records(out)[-1]
    assert "accuracy/overall" in last
    state = load_checkpoint(out, "last").state
    assert state["step"] == last["step"]
    assert state["metrics"]["accuracy/overall"] == last["accuracy/overall"]


def test_a_signal_saves_before_it_evaluates(train, tmp_path, monkeypatch):
    def fail(*args):
        raise RunError("killed here, for the grace period is over")

    monkeypatch.setattr("classifier.report.evaluate", fail)
    assert train("--max-minutes", 1e-6, "--out", tmp_path / "r").code == 1
    assert load_checkpoint(tmp_path / "r", "last").state["step"] == 1


def test_what_was_evaluated_is_not_evaluated_again(train, tmp_path, monkeypatch):
    """The signal comes in the midst of the evaluation of step 2."""

    def evaluate_then_stop(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    monkeypatch.setattr("classifier.report.evaluate", evaluate_then_stop)
    result = train("--eval-every", 2, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert [row["step"] for row in records(tmp_path / "r") if "accuracy/overall" in row] == [2]
    assert "stopped after step 2: SIGTERM received" in result.err


def test_signals_are_pythons_until_the_loop(monkeypatch, tmp_path):
    """Ctrl-C while the images are opened must end the command, not wait for a step."""
    handlers = []

    def look(*arguments):
        handlers.append(signal.getsignal(signal.SIGINT))
        raise UserError("seen enough")

    monkeypatch.setattr("classifier.train.open_images", look)
    with pytest.raises(UserError, match="seen enough"):
        train_in_this_process(TrainConfig(out=tmp_path / "r", device="cpu"))
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_ctrl_c_before_the_first_step_ends_the_command(start_train, tmp_path, monkeypatch):
    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return class_counts(*arguments)

    monkeypatch.setattr("classifier.labels.class_counts", interrupted)
    result = start_train("--prior", "--out", tmp_path / "r").wait()
    assert (result.code, result.err) == (130, "train_classifier: interrupted\n")
    assert not (tmp_path / "r").exists()


def test_a_killed_worker_ends_the_run_with_one_line(start_train, tmp_path, wait_for_step):
    out = tmp_path / "r"
    process = start_train("--epochs", 1000, "--workers", 1, "--eval-every", 2000, "--out", out)
    wait_for_step(out, 2)
    find = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    (worker,) = subprocess.run(find, capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(worker), signal.SIGKILL)
    result = process.wait()
    assert result.code == 1
    assert "Traceback" not in result.err
    assert result.err.splitlines()[-1].startswith("train_classifier: a process that draws images ended")


def test_max_minutes_ends_the_run_cleanly(train, bare_train, tmp_path):
    result = train("--max-minutes", 1e-6, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert load_checkpoint(tmp_path / "r", "last").state["step"] == 1
    # The hint is a command that works as it stands, with the settings of the run.
    assert "--max-minutes 1e-06 reached; continue with: " in result.err
    hint = result.err.split("continue with: train_classifier ")[1].splitlines()[0]
    result = bare_train(*hint.split())
    assert result.code == 0, result.err
    assert load_checkpoint(tmp_path / "r", "last").state["step"] == 2


def test_a_finished_run_has_nothing_left_to_do(train, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "r")
    result = train("--max-steps", 4, "--resume", tmp_path / "r")
    assert result.code == 0
    assert "nothing to do: the run has its 4 steps" in result.err


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(train, tmp_path):
    out = tmp_path / "r"
    assert train("--max-steps", 1, "--out", out).code == 0
    result = train("--lr", 1e15, "--max-steps", 9, "--out", out, "--resume", "auto")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("train_classifier: the loss was not finite at step ")
    for value in weights(out).values():
        assert value.isfinite().all()
    flags = ["--lr", 1e-4, "--warmup-steps", 3, "--max-steps", 3]
    result = train(*flags, "--out", out, "--resume", "auto")
    assert result.code == 0, result.err
    assert "changed    lr from 1000000000000000.0 to 0.0001, warmup_steps from 0 to 3" in result.err


def test_a_validation_loss_that_is_not_finite_is_not_saved(train, tmp_path, monkeypatch):
    def spoiled(*args):
        return dataclasses.replace(evaluate(*args), loss=math.nan)

    monkeypatch.setattr("classifier.report.evaluate", spoiled)
    result = train("--max-steps", 1, "--out", tmp_path / "r")
    assert result.code == 1
    assert "the validation loss was not finite at step 1; " in result.err.splitlines()[-1]
    assert not {"best", "last"} & set(os.listdir(tmp_path / "r"))
    assert "NaN" not in (tmp_path / "r" / "metrics.jsonl").read_text()


# ---- accumulation and ranks


def test_accumulated_micro_batches_equal_one_batch(train, tmp_path):
    """Ten images a step from 48: the last step of an epoch is short, and its last micro-batch shorter than
    the first."""
    for batch_size, accumulate in ((10, 1), (5, 2)):
        flags = ["--batch-size", batch_size, "--accumulate", accumulate, "--max-steps", 6]
        assert train(*flags, "--out", tmp_path / f"{batch_size}").code == 0
    compare(tmp_path / "10", tmp_path / "5")


def compare(one, other):
    """The same loss curve and weights, but for what Adam makes of sums taken in another order: where a
    gradient is nearly zero its rounding decides the direction of the step."""
    for a, b in zip(records(one), records(other), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if key.startswith("loss/"):
                assert a[key] == pytest.approx(b[key], rel=1e-3), (key, a["step"])
    expected = weights(other)
    for key, value in weights(one).items():
        tolerance = 2e-5 if value.dim() else 1e-3 * value.abs()  # a number may be as large as 1,000
        assert (value.double() - expected[key].double()).abs().mean() <= tolerance, key


def test_two_ranks_learn_what_one_process_learns(train, start_train, two_ranks, tmp_path):
    """Steps of 20, 20 and 8 images."""
    flags = ["--max-steps", 5, "--eval-every", 3]
    assert train(*flags, "--batch-size", 10, "--accumulate", 2, "--out", tmp_path / "one").code == 0
    flags += ["--batch-size", 5, "--accumulate", 2, "--out", tmp_path / "two"]
    ranks = [start_train(*flags, **env) for env in two_ranks]
    first, second = [rank.wait() for rank in ranks]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert second.err == ""  # only rank 0 speaks
    compare(tmp_path / "one", tmp_path / "two")
    # And the run of two ranks goes on alone, since a step keeps its twenty images.
    more = ["--max-steps", 6, "--batch-size", 20, "--accumulate", 1, "--resume", tmp_path / "two"]
    assert train(*more).code == 0


PAIRS = ["--images-per-class", 12, "--images-of-a-class", 2, "--accumulate", 1]
PARALLEL = {
    name: PAIRS if kind.rows_per_class > 1 else [] for name, kind in HEADS.items() if kind.split_tables
}


@pytest.mark.parametrize(
    ("head", "counts"),
    [("flat", [2]), *(pytest.param(head, [3, 2, 1], marks=pytest.mark.slow) for head in PARALLEL)],
)
def test_ranks_share_the_classes_and_resume_each_other(train, start_train, ranks, tmp_path, head, counts):
    """With 13 images to evaluate, four at a time, three ranks have two batches, one and one."""
    flags = ["--head", head, *PARALLEL[head], "--accumulate", 1, "--eval-every", 2, "--vocab-parallel"]
    flags += ["--eval-images", 13]
    alone = ["--batch-size", 12, "--max-steps", 2 * len(counts), "--out", tmp_path / "alone"]
    result = train(*flags, *alone)
    assert result.code == 0, result.err
    for i, count in enumerate(counts, start=1):
        more = ["--batch-size", 12 // count, "--max-steps", 2 * i, "--out", tmp_path / "split"]
        job = [start_train(*flags, *more, "--resume", "auto", **env) for env in ranks(count)]
        for result in [process.wait() for process in job]:
            assert result.code == 0, result.err
    compare(tmp_path / "alone", tmp_path / "split")


def test_ranks_that_see_different_folders_do_not_train(start_train, two_ranks, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "here")
    flags = ["--resume", "auto", "--batch-size", 2, "--out"]
    folders = (tmp_path / "here", tmp_path / "elsewhere")
    ranks = [start_train(*flags, folder, **env) for folder, env in zip(folders, two_ranks, strict=True)]
    for result, speaker in zip([rank.wait() for rank in ranks], ("", "rank 1: "), strict=True):
        assert result.code == 2, result.err
        assert result.err.startswith(f"train_classifier: {speaker}--resume: in {tmp_path}")
        assert "some ranks find a checkpoint of step 0 and others of step 4" in result.err


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_leaves_a_checkpoint(tiny_flags, tmp_path, wait_for_step):
    out = tmp_path / "r"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = [*tiny_flags, "--epochs", "1000", "--eval-every", "2", "--out", str(out)]
    command = [*torchrun, "-m", "classifier.train", *flags]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
        try:
            wait_for_step(out, 3)
            find = ["ps", "-o", "pid=", "--ppid", str(job.pid)]
            ranks = subprocess.run(find, capture_output=True, text=True, check=True).stdout.split()
            os.kill(max(map(int, ranks)), signal.SIGKILL)
            assert job.wait(timeout=120) != 0
        finally:
            job.terminate()  # torchrun takes its ranks with it
    assert load_checkpoint(out, "last").state["step"] >= 2


# ---- images on disk


def test_training_from_disk(train, score, rendered, tmp_path):
    flags = ["--max-steps", 2, "--data", rendered, "--out", tmp_path / "r"]
    result = train(*flags, "--prior", "--workers", 1)
    assert result.code == 0, result.err
    assert f"48 classes, 48 training images in {rendered}" in result.err
    moved = tmp_path / "moved"
    shutil.copytree(rendered, moved)
    assert score(tmp_path / "r", "--data", moved).code == 0
    assert json.loads((tmp_path / "r" / "eval-test.json").read_text())["images"] == 48
