"""`train_lm`: what it writes, and that neither a kill nor more ranks change what it learns."""

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import ChainMap
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lm.build import build_model, data_of, head_cost, parameter_table
from lm.config import TrainConfig
from lm.evaluate import evaluate
from lm.model import CompressedLM, CompressedLMConfig
from lm.presets import PRESETS
from lm.text.tokenizer import END
from lm.train import train
from sqrtvocab import HEADS, FlatHead, Partition
from sqrtvocab.settings import read_config
from sqrtvocab.training import RunError, UserError, load_checkpoint, read_metrics
from sqrtvocab.training.scores import BANDS

MEASURED = ("minutes", "speed/tokens_per_s", "memory/peak")  # differ from run to run


def records(run):
    return [
        {key: value for key, value in record.items() if key not in MEASURED}
        for record in read_metrics(run / "metrics.jsonl")
    ]


SPLIT = [name for name, kind in HEADS.items() if kind.split_tables and kind.rows_per_class == 1]


def same_weights(one, other, name="last", **tolerance):
    ours, theirs = (load_file(run / name / "model.safetensors") for run in (one, other))
    assert ours.keys() == theirs.keys()
    for key, weight in ours.items():
        if tolerance:
            torch.testing.assert_close(weight, theirs[key], **tolerance)
        else:
            assert torch.equal(weight, theirs[key]), key


# ---- what it writes ----


def test_the_run_folder_tells_everything(finished):
    names = {path.name for path in finished.iterdir() if not path.name.startswith("events")}
    assert names == {
        ".lock",
        "config.json",
        "tokenizer.json",
        "metrics.jsonl",
        "projector",
        "projector_config.pbtxt",
        "best",
        "last",
        "last.previous",
    }
    settings = json.loads((finished / "config.json").read_text())
    assert settings["vocab_size"] == 300
    assert settings["groups"] == math.isqrt(300)
    assert settings["sequences_per_step"] == 4
    assert settings["total_steps"] == 20
    assert TrainConfig.from_json(settings).hidden_size == 16


def test_tensorboard(finished):
    board = EventAccumulator(str(finished))
    board.Reload()
    scalars = {
        "loss/train", "loss/group", "loss/member", "perplexity/train", "learning_rate", "speed/tokens_per_s",
        "memory/peak", "loss/validation", "loss/validation_group", "loss/validation_member",
        "perplexity/validation", "accuracy/token", "accuracy/group", "bits_per_byte", "gradient/norm",
        "gradient/clipped", "accuracy/mean_over_classes", "calibration/error",
        *(f"{what}_by_frequency/{band}" for what in ("loss", "accuracy") for band in BANDS),
    }  # fmt: skip
    pictures, histograms = {"calibration/reliability", "confusion/groups"}, {"probability/true_group"}
    tags = board.Tags()
    assert set(tags["scalars"]) == {f"language: {tag}" for tag in scalars}
    assert set(tags["images"]) == {f"language: {tag}" for tag in pictures}
    assert set(tags["histograms"]) == {f"language: {tag}" for tag in histograms}
    for tag in scalars | pictures | histograms:
        assert board.SummaryMetadata(f"language: {tag}").summary_description, tag
    texts = {tag.removesuffix("/text_summary") for tag in tags["tensors"]}
    assert {"language: config", "language: parameters", "language: samples", "language: groups"} <= texts
    assert "custom_scalars__config__" in texts
    story = board.Tensors("language: samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "**Once upon a time**" in story


def test_it_learns(finished):
    losses = [row["loss/train"] for row in records(finished) if "loss/train" in row]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.2
    for row in records(finished):
        if "loss/group" in row:
            assert row["loss/train"] == pytest.approx(row["loss/group"] + row["loss/member"], rel=1e-5)
            assert row["perplexity/train"] == pytest.approx(math.exp(row["loss/train"]))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--head", "flat"),
            "flat, 300 classes, prior; group accuracy by 17 groups of at most 18 classes, by frequency",
        ),
        (
            ("--head", "flat", "--chunk-size", 9, "--tie-embeddings", "--adapter", "--no-prior"),
            "flat, 300 classes, tied, 9 rows at a time, through an adapter; "
            "group accuracy by 17 groups of at most 18 classes, by frequency",
        ),
        (
            ("--head", "adaptive", "--grouping", "index"),
            "adaptive, 12 frequent classes and 2 clusters of rarer ones, by index, prior; "
            "group accuracy by 17 groups of at most 18 classes, by index",
        ),
        (
            ("--head", "grouped-low-rank", "--rank", 4, "--num-groups", 3),
            "grouped-low-rank, 3 groups of at most 100 classes, rank 4, by frequency, prior",
        ),
        (
            ("--head", "grouped", "--modulation", "film", "--grouping", "random", "--no-prior"),
            "grouped, 17 groups of at most 18 classes, film, by random",
        ),
    ],
)
def test_the_start_says_what_the_head_is(run, tiny, tmp_path, flags, says):
    result = run("train", *tiny, "--max-steps", 1, *flags, "--out", tmp_path / "r")
    (line,) = (line for line in result.err.splitlines() if line.startswith("head "))
    assert line.split(None, 1)[1] == says


def test_logits_of_a_chunk():
    head = FlatHead(8, 1000, chunk_size=64)
    assert head.cost().describe(2048) == "0.01 M multiply-adds a row, 0.3 MB of logits a chunk"
    assert head.cost().describe(10, "token") == "0.01 M multiply-adds a token, 0.0 MB of logits a chunk"


def test_the_start_says_what_the_head_costs(run, tiny, tmp_path):
    result = run("train", *tiny, "--max-steps", 1, "--out", tmp_path / "r")
    lines = dict(line.split(None, 1) for line in result.err.splitlines() if " " in line)
    assert lines["head"] == "grouped-linear, 17 groups of at most 18 classes, by frequency, prior"
    assert "costs      0.00 M multiply-adds a token, 0.0 MB of logits" in result.err
    assert "flat costs 0.00 M multiply-adds a token, 0.2 MB of logits a micro-batch" in result.err


def test_a_checkpoint_is_a_model_of_transformers(finished):
    model = CompressedLM.from_pretrained(finished / "best")
    weights = load_file(finished / "best" / "model.safetensors")
    assert model.config.head == "grouped-linear"
    assert model.config.ordered
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert model.generation_config.eos_token_id == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("--head", "flat"),
        ("--head", "flat", "--tie-embeddings", "--no-prior"),
        ("--head", "grouped", "--grouping", "index", "--no-prior", "--num-groups", 9),
        ("--head", "grouped-linear", "--tie-embeddings", "--backbone", "gpt-neo", "--num-layers", 3),
        ("--head", "grouped-linear", "--tie-embeddings", "--adapter"),
        ("--head", "grouped-low-rank", "--rank", 4),
        ("--head", "adaptive", "--backbone", "llama"),
        ("--head", "grouped", "--modulation", "film"),
        ("--head", "flat", "--chunk-size", 7),
        ("--grouping", "random", "--checkpoint-activations", "--precision", "bf16", "--dropout", 0.1),
    ],
)
def test_every_head_and_backbone(run, tiny, tmp_path, flags):
    out = tmp_path / "r"
    result = run("train", *tiny, "--max-steps", 3, "--eval-every", 2, *flags, "--out", out)
    assert result.code == 0, result.err
    result = run("eval", out, "--samples", 0, "--device", "cpu", "--precision", "fp32")
    assert result.code == 0, result.err
    scored = json.loads((out / "eval.json").read_text())
    assert scored["loss"] < math.log(300) + 0.1
    trained = [row for row in records(out) if "loss/validation" in row][-1]
    assert scored["group_accuracy"] == pytest.approx(trained["accuracy/group"], abs=0.25)


@pytest.mark.parametrize(
    ("tokenizer", "tokens"), [("gpt2", 50_257), pytest.param("train:300", 300, marks=pytest.mark.slow)]
)
def test_only_the_tokens_that_occur(run, tiny, tmp_path, tokenizer, tokens):
    out, flags = tmp_path / "r", [*tiny, "--tokenizer", tokenizer, "--vocab", "occurring", "--eval-every", 1]
    assert run("train", *flags, "--max-steps", 1, "--out", out).code == 0
    result = run("train", *flags, "--max-steps", 2, "--out", out, "--resume", "auto")
    assert result.code == 0, result.err
    config = json.loads((out / "config.json").read_text())
    assert 256 < config["vocab_size"] <= min(tokens, 5000)
    other = tmp_path / "other.txt"
    other.write_text(f"Zwölf Boxkämpfer 東京 🦊\n{END}\nThe fox ran.\n{END}\nAn antidisestablishmentarian.\n")
    assert run("eval", out, "--samples", 0, "--data", other, "--device", "cpu").code == 0
    scored = json.loads((out / "eval.json").read_text())
    assert 0 < scored["bits_per_byte"] < 20
    assert run("eval", out, "--samples", 1, "--max-tokens", 3, "--device", "cpu").code == 0
    said = run("sample", out, "--prompt", "Zwölf 🦊", "--max-tokens", 3, "--device", "cpu")
    assert said.out.startswith("Zwölf 🦊")


def test_the_prior_is_there_from_the_first_step(run, tiny, tmp_path):
    first = {}
    for flag in ("--prior", "--no-prior"):
        run("train", *tiny, "--max-steps", 1, flag, "--out", tmp_path / flag)
        first[flag] = records(tmp_path / flag)[0]["loss/train"]
    assert first["--prior"] < first["--no-prior"] - 0.5


# ---- groups by clusters ----


@pytest.mark.parametrize("head", ["grouped-linear", "flat"])
def test_clusters_of_a_runs_embeddings(run, tiny, finished, tmp_path, head):
    """The groups are those of k-means on the embedding; afterwards neither it nor its run is needed."""
    source, out = tmp_path / "source", tmp_path / "r"
    shutil.copytree(finished, source)
    flags = [*tiny, "--head", head, "--grouping", "clusters", "--embeddings", source, "--out", out]
    result = run("train", *flags, "--max-steps", 2)
    assert result.code == 0, result.err
    vectors = load_file(finished / "best" / "model.safetensors")["backbone.wte.weight"]
    sizes = torch.bincount(Partition(300).split(torch.arange(300))[0])
    if head == "flat":
        order = torch.tensor(json.loads((out / "order.json").read_text())["order"])
    else:
        order = CompressedLM.from_pretrained(out / "best").head.partition.order
    near = Partition(300, order=order).split(torch.arange(300))[0]
    assert torch.equal(torch.bincount(near), sizes)
    unit = torch.nn.functional.normalize(vectors)
    alike = unit @ unit.T
    same = near[:, None] == near
    assert float(alike[same].mean()) > float(alike[~same].mean()) + 0.1
    shutil.rmtree(source)
    result = run("train", *flags, "--max-steps", 4, "--resume", "auto")
    assert result.code == 0, result.err
    result = run("eval", out, "--samples", 0, "--device", "cpu", "--checkpoint", "last")
    assert result.code == 0, result.err
    scored = json.loads((out / "eval.json").read_text())
    trained = [row for row in records(out) if "loss/validation" in row][-1]
    assert scored["loss"] == pytest.approx(trained["loss/validation"], abs=0.2)  # on other windows


def test_resumed_groups_that_were_found_are_as_if_never_stopped(run, tiny, finished, tmp_path):
    flags = [*tiny, "--head", "grouped", "--grouping", "discovered", "--embeddings", finished]
    assert run("train", *flags, "--max-steps", 4, "--out", tmp_path / "whole").code == 0
    assert run("train", *flags, "--max-steps", 2, "--out", tmp_path / "parts").code == 0
    assert run("train", *flags, "--max-steps", 4, "--out", tmp_path / "parts", "--resume", "auto").code == 0
    same_weights(tmp_path / "whole", tmp_path / "parts")


def test_bad_embeddings(run, complaint, tiny, finished, tmp_path):
    flags = [*tiny, "--out", tmp_path / "r", "--grouping", "clusters"]
    says = complaint(run("train", *flags, "--embeddings", tmp_path / "none"))
    assert says.startswith(f"train_lm: --embeddings {tmp_path}/none: no such folder; expected the run folder")
    (tmp_path / "empty").mkdir()
    assert "not a run folder" in complaint(run("train", *flags, "--embeddings", tmp_path / "empty"))
    says = complaint(run("train", *flags, "--embeddings", finished, "--tokenizer", "train:310"))
    assert "trained with another tokenizer" in says
    assert "300 tokens" in says
    assert "310 tokens" in says
    assert not (tmp_path / "r").exists()


def test_settings_of_older_runs_are_read(finished):
    settings = json.loads((finished / "config.json").read_text())
    for name in ("modulation", "rank", "chunk_size", "embeddings", "adapter"):
        del settings[name]
    assert TrainConfig.from_json(settings).modulation is None
    assert TrainConfig.from_json(settings).adapter is False
    del settings["head"]
    with pytest.raises(UserError, match="'head' is missing"):
        TrainConfig.from_json(settings)


# ---- stopping and going on ----


SGD = ("--optimizer", "sgd", "--lr", 1, "--weight-decay", 0)


@pytest.mark.parametrize(
    "further",
    [
        ("--dropout", 0.1),
        (*SGD, "--tie-embeddings"),
        pytest.param((*SGD, "--head", "sampled", "--samples", 20), marks=pytest.mark.slow),
    ],
    ids=["adam", "sgd", "sgd-sparse"],
)
def test_resumed_is_as_if_never_stopped(run, tiny, tmp_path, further):
    flags = [*tiny, *further, "--eval-every", 2, "--accumulate", 2]
    assert run("train", *flags, "--max-steps", 4, "--out", tmp_path / "whole").code == 0
    assert run("train", *flags, "--max-steps", 2, "--out", tmp_path / "parts").code == 0
    assert run("train", *flags, "--max-steps", 4, "--out", tmp_path / "parts", "--resume", "auto").code == 0
    same_weights(tmp_path / "whole", tmp_path / "parts")
    assert records(tmp_path / "whole") == records(tmp_path / "parts")


def test_killed_and_resumed_is_as_if_nothing_had_happened(start, run, tiny, tmp_path, wait_for_step):
    flags = [*tiny, "--eval-every", 5, "--max-steps", 40]
    assert run("train", *flags, "--out", tmp_path / "whole").code == 0
    killed = start("train", *flags, "--out", tmp_path / "parts")
    wait_for_step(tmp_path / "parts", 8)
    killed.kill()
    killed.wait()
    result = run("train", *flags, "--out", tmp_path / "parts", "--resume", "auto")
    assert result.code == 0, result.err
    assert ", from step 0" not in result.err
    same_weights(tmp_path / "whole", tmp_path / "parts")
    assert records(tmp_path / "whole") == records(tmp_path / "parts")


def test_a_run_goes_on_with_another_learning_rate_and_says_so(run, tiny, tmp_path):
    """What the message of a loss that is not finite advises."""
    flags = [*tiny, "--out", tmp_path / "r"]
    broken = run("train", *flags, "--lr", "9e15", "--eval-every", 1, "--max-steps", 9)
    assert broken.code == 1
    assert "not finite" in broken.err
    assert run("train", *flags, "--max-steps", 1).code == 2  # the folder is taken
    result = run("train", *flags, "--lr", "1e-3", "--max-steps", 9, "--resume", "auto")
    assert result.code == 0, result.err
    weights = load_file(tmp_path / "r" / "last" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values() if tensor.is_floating_point())


def test_a_lower_learning_rate_on_resuming_is_told(run, tiny, tmp_path):
    flags = [*tiny, "--out", tmp_path / "r"]
    assert run("train", *flags, "--lr", "2e-3", "--max-steps", 2).code == 0
    result = run("train", *flags, "--lr", "1e-3", "--max-steps", 4, "--resume", "auto")
    assert result.code == 0, result.err
    assert "lr from 0.002 to 0.001" in result.err


def test_ctrl_c_saves(start, run, tiny, tmp_path, wait_for_step):
    flags = [*tiny, "--eval-every", 10_000, "--epochs", 500, "--out", tmp_path / "r"]
    process = start("train", *flags)
    wait_for_step(tmp_path / "r", 3)
    process.kill(signal.SIGINT)
    result = process.wait()
    assert result.code == 0, result.err
    assert "SIGINT received" in result.err
    step = json.loads((tmp_path / "r" / "last" / "state.json").read_text())["step"]
    assert step >= 3
    # The hint is a command that works as it stands, with the settings of the run.
    hint = result.err.split("continue with: train_lm ")[1].splitlines()[0]
    result = run("train", *shlex.split(hint), "--max-steps", step)
    assert result.code == 0, result.err
    assert "nothing to do" in result.err


def test_what_was_evaluated_is_not_evaluated_again(run, tiny, tmp_path, monkeypatch):
    """The signal comes in the middle of the evaluation of step 2."""

    def evaluate_then_stop(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr("lm.report.evaluate", evaluate_then_stop)
    result = run("train", *tiny, "--eval-every", 2, "--max-steps", 9, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert [row["step"] for row in records(tmp_path / "r") if "loss/validation" in row] == [2]
    assert "stopped after step 2: SIGTERM received" in result.err


def test_a_signal_saves_before_it_evaluates(run, tiny, tmp_path, monkeypatch):
    def fail(*arguments):
        raise RunError("killed here, for the grace period is over")

    monkeypatch.setattr("lm.report.evaluate", fail)
    assert run("train", *tiny, "--max-minutes", 1e-6, "--out", tmp_path / "r").code == 1
    assert load_checkpoint(tmp_path / "r", "last").state["step"] == 1


def test_a_validation_loss_that_is_not_finite_is_not_saved(run, tiny, tmp_path, monkeypatch):
    def spoiled(*arguments):
        return replace(evaluate(*arguments), loss=math.nan)

    monkeypatch.setattr("lm.report.evaluate", spoiled)
    result = run("train", *tiny, "--max-steps", 1, "--out", tmp_path / "r")
    assert result.code == 1
    assert "the validation loss was not finite at step 1; " in result.err.splitlines()[-1]
    assert not (tmp_path / "r" / "last").exists()


def test_ctrl_c_before_the_first_step_ends_the_command(run, tiny, tmp_path, monkeypatch):
    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return build_model(*arguments)

    monkeypatch.setattr("lm.train.build_model", interrupted)
    result = run("train", *tiny, "--out", tmp_path / "r")
    assert (result.code, result.err.splitlines()[-1]) == (130, "train_lm: interrupted")
    assert not (tmp_path / "r").exists()


def test_a_cosine_cannot_be_stretched(run, complaint, tiny, tmp_path):
    flags = [*tiny, "--schedule", "cosine", "--out", tmp_path / "r"]
    assert run("train", *flags, "--max-steps", 1).code == 0
    assert complaint(run("train", *flags, "--max-steps", 2, "--resume", "auto")) == (
        f"train_lm: --resume: {tmp_path}/r follows a cosine that cannot be stretched: total steps is 1 there "
        "and 2 here; give the same --epochs and --max-steps, or --schedule constant"
    )
    flags += ["--schedule", "constant", "--max-steps", 2, "--resume", "auto"]
    result = run("train", *flags)
    assert result.code == 0, result.err
    assert "changed    schedule from cosine to constant" in result.err


def test_a_batch_in_parts_is_the_same_batch(run, tiny, tmp_path):
    for name, size, parts in (("one", 8, 1), ("two", 4, 2)):
        flags = ["--batch-size", size, "--accumulate", parts, "--max-steps", 3, "--out", tmp_path / name]
        assert run("train", *tiny, *flags).code == 0
    same_weights(tmp_path / "one", tmp_path / "two", rtol=1e-3, atol=1e-5)


def test_two_ranks_learn_what_one_does(start, run, tiny, two_ranks, tmp_path):
    flags = [*tiny, "--max-steps", 4, "--eval-every", 2]
    assert run("train", *flags, "--batch-size", 8, "--out", tmp_path / "one").code == 0
    flags += ["--batch-size", 4, "--out", tmp_path / "two"]
    ranks = [start("train", *flags, **env) for env in two_ranks]
    first, second = [rank.wait() for rank in ranks]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    same_weights(tmp_path / "one", tmp_path / "two", rtol=1e-3, atol=1e-5)
    ours, theirs = records(tmp_path / "one")[-1], records(tmp_path / "two")[-1]
    assert ours["loss/validation"] == pytest.approx(theirs["loss/validation"], rel=1e-4)
    assert ours["accuracy/token"] == pytest.approx(theirs["accuracy/token"], abs=0.01)


@pytest.mark.parametrize(
    ("head", "counts"),
    [("grouped-linear", [2]), *(pytest.param(head, [3, 2, 1], marks=pytest.mark.slow) for head in SPLIT)],
)
def test_ranks_share_a_vocabulary_and_resume_each_other(start, run, tiny, ranks, tmp_path, head, counts):
    flags = [*tiny, "--head", head, "--eval-every", 2, "--no-tie-embeddings", "--vocab-parallel"]
    flags += ["--sample-every", 2 if len(counts) > 1 else 0]
    alone = ["--batch-size", 12, "--max-steps", 2 * len(counts), "--out", tmp_path / "alone"]
    assert run("train", *flags, *alone).code == 0
    for i, count in enumerate(counts, start=1):
        more = ["--batch-size", 12 // count, "--max-steps", 2 * i, "--out", tmp_path / "split"]
        job = [start("train", *flags, *more, "--resume", "auto", **env) for env in ranks(count)]
        for result in [process.wait() for process in job]:
            assert result.code == 0, result.err
    same_weights(tmp_path / "alone", tmp_path / "split", rtol=1e-3, atol=1e-4)
    ours, theirs = (dict(ChainMap(*reversed(records(tmp_path / run)))) for run in ("alone", "split"))
    for name in ("loss/train", "loss/validation", "gradient/norm"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3), name
    assert ours["accuracy/token"] == pytest.approx(theirs["accuracy/token"], abs=0.01)


def test_a_vocabulary_that_cannot_be_split(start, tiny, two_ranks, tmp_path, complaint):
    flags = [*tiny, "--head", "grouped", "--vocab-parallel", "--batch-size", 2, "--out", tmp_path / "r"]
    first, _ = [process.wait() for process in [start("train", *flags, **env) for env in two_ranks]]
    assert "--vocab-parallel: not with --head grouped: the classes cannot be split" in complaint(first)
    flags = [*tiny, "--vocab-parallel", "--compile", "--out", tmp_path / "r"]
    assert complaint(start("train", *flags).wait()) == "train_lm: --vocab-parallel: not with --compile"


@pytest.mark.slow
def test_torchrun_and_compile(story_file, tiny, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lm.train"]
    flags = ["--max-steps", 2, "--out", tmp_path / "r"]
    subprocess.run([*command, *map(str, [*tiny, *flags])], check=True, capture_output=True)
    assert (tmp_path / "r" / "best" / "model.safetensors").exists()
    for flag in ("--compile", "--no-compile"):
        plain = [sys.executable, "-m", "lm.train", *tiny, "--max-steps", 2, flag, "--out", tmp_path / flag]
        subprocess.run(list(map(str, plain)), check=True, capture_output=True)
    same_weights(tmp_path / "--compile", tmp_path / "--no-compile", rtol=1e-3, atol=1e-4)


def test_what_a_resumed_run_trains_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    auto = {"data": "auto", "data_used": "stories:40000"}
    assert data_of(TrainConfig(), {}) == "auto"
    assert data_of(TrainConfig(), auto) == "stories:40000"
    assert data_of(TrainConfig(data="tinystories"), auto) == "tinystories"  # to be refused
    file = {"data": "s.txt", "data_used": "/elsewhere/s.txt"}
    assert data_of(TrainConfig(data="s.txt"), file) == "/elsewhere/s.txt"
    (tmp_path / "s.txt").touch()
    assert data_of(TrainConfig(data="s.txt"), file) == "s.txt"  # to be refused
    assert data_of(TrainConfig(data="s.txt"), {"data": "s.txt", "data_used": "s.txt"}) == "s.txt"


def test_signals_are_pythons_until_the_loop(monkeypatch, tmp_path):
    """Ctrl-C while the text is downloaded or tokenised must end the command, not wait for a step."""
    handlers = []

    def look(*arguments):
        handlers.append(signal.getsignal(signal.SIGINT))
        raise UserError("seen enough")

    monkeypatch.setattr("lm.build.open_source", look)
    with pytest.raises(UserError, match="seen enough"):
        train(TrainConfig(out=tmp_path / "r", device="cpu"))
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_a_run_needs_neither_its_tokenizer_file_nor_its_folder(run, tiny, finished, tmp_path, monkeypatch):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    text, given = home / "s.txt", home / "tokenizer.json"
    shutil.copy(tiny[1], text)
    shutil.copy(finished / "tokenizer.json", given)
    monkeypatch.chdir(home)
    flags = [*tiny, "--data", "s.txt", "--tokenizer", "tokenizer.json"]
    result = run("train", *flags, "--max-steps", 1, "--out", away / "r")
    assert result.code == 0, result.err
    assert "\ndata       s.txt: " in result.err
    assert "\ntokenizer  tokenizer.json, 300 tokens" in result.err
    given.unlink()
    monkeypatch.chdir(away)
    result = run("train", "--resume", "r", "--max-steps", 2)
    assert result.code == 0, result.err
    result = run("train", *flags, "--data", text, "--max-steps", 3, "--out", "r", "--resume", "auto")
    assert result.code == 0, result.err
    result = run("eval", "r", "--samples", 2, "--device", "cpu")
    assert result.code == 0, result.err
    settings = read_config(away / "r")
    (away / "r" / "config.json").write_text(json.dumps({**settings, "data": "s.txt", "data_used": "s.txt"}))
    monkeypatch.chdir(home)  # an older run, begun in this folder
    result = run("train", "--resume", away / "r", "--max-steps", 4)
    assert result.code == 0, result.err


def test_config_is_written_first(run, tiny, tmp_path, monkeypatch):
    def killed(*arguments):
        raise RunError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr("lm.text.tokenizer.TextTokenizer.save", killed)
        flags = [*tiny, "--tokenizer", "gpt2", "--max-steps", 1, "--out", tmp_path / "r"]
        assert "killed here" in run("train", *flags).err
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [".lock", "config.json"]
    result = run("train", *flags, "--resume", "auto")
    assert result.code == 0, result.err


# ---- bad input ----


def test_all_bad_flags_at_once(run, complaint):
    flags = ("--hidden-size", 30, "--num-attention-heads", 8, "--lr", -1, "--batch-size", 0, "--dropout", 1)
    line = complaint(run("train", *flags))
    for part in (
        "--hidden-size 30 must be divisible by --num-attention-heads 8",
        "--lr must be a positive number, got -1.0",
        "--batch-size must be at least 1, got 0",
        "--dropout must be at least 0 and less than 1",
    ):
        assert part in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--seq-len", 100_000), "--seq-len 100000: longer than the training text, which has"),
        (("--num-groups", 301), "--num-groups 301: there are only 300 tokens"),
        (("--tokenizer", "nowhere"), "--tokenizer nowhere: no such file"),
        (("--data", "nowhere"), "--data nowhere: no such file or folder"),
        (("--head", "magic"), "--head magic: no head has this name; choose flat, grouped, grouped-linear, "),
        (("--head", "factored"), "--head factored: needs radices, which text does not have"),
        (
            ("--head", "adaptive", "--num-groups", 3),
            "--num-groups: --head adaptive has no groups of this kind",
        ),
        (("--adapter",), "--adapter is for --tie-embeddings"),
        (("--head", "grouped", "--tie-embeddings"), "--tie-embeddings: --head grouped has no weight"),
        (("--modulation", "film"), "--modulation is for --head grouped, not grouped-linear"),
        (("--head", "grouped", "--chunk-size", 4), "--chunk-size is for --head flat, not grouped"),
        (("--rank", 4), "--rank is for --head grouped-low-rank, not grouped-linear"),
        (
            ("--head", "grouped-low-rank", "--hidden-size", 8, "--num-attention-heads", 2, "--rank", 9),
            "--rank 9 must be at most --hidden-size 8",
        ),
        (("--head", "flat", "--chunk-size", 0), "--chunk-size must be at least 1, got 0"),
        (("--head", "adaptive", "--grouping", "random"), "--grouping random: --head adaptive needs frequent"),
        (("--grouping", "clusters"), "--grouping clusters needs --embeddings"),
        (("--embeddings", "runs/x"), "--embeddings is for --grouping clusters or discovered, not frequency"),
        (("--device", "cuda"), "--device cuda: torch"),
        (("--seed", 10**20), "--seed must be below 2^63, got 100000000000000000000"),
    ],
)
def test_refused(run, complaint, tiny, tmp_path, flags, says):
    out = tmp_path / "r"
    result = run("train", *tiny, "--out", out, *flags, CUDA_VISIBLE_DEVICES="")
    assert says in complaint(result)
    assert not out.exists()


def test_a_run_folder_in_use_and_another_run(run, complaint, tiny, finished):
    assert "there is a run already" in complaint(run("train", *tiny, "--out", finished))
    for flags, says in (
        (("--head", "flat"), "head is 'grouped-linear' there and 'flat' here"),
        (("--tokenizer", "gpt2"), "tokenizer is 'train:300' there and 'gpt2' here"),
        (("--batch-size", 5), "sequences per step is 4 there and 5 here"),
    ):
        line = complaint(run("train", *tiny, *flags, "--resume", "auto", "--out", finished))
        assert says in line


def test_a_folder_of_something_else(run, complaint, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    line = complaint(run("train", "--resume", tmp_path))
    assert line == (
        f"train_lm: --resume {tmp_path}/config.json: not the settings of a run of train_lm: "
        "the setting 'preset' is missing"
    )
    line = complaint(run("train", "--resume", tmp_path, "--preset", "quickstart"))
    assert line == f"train_lm: --preset: {tmp_path} has its own settings; drop the flag"
    assert "not a run folder" in complaint(run("train", "--resume", tmp_path / "none"))


@pytest.mark.parametrize(
    ("command", "flags", "says"),
    [
        ("train", ("--grouping", "magic"), "--grouping"),
        ("train", ("--no-such-flag",), "--no-such-flag"),
        ("train", ("--resume",), "--resume"),
        ("train", ("--preset",), "--preset"),
        ("train", ("--steps", "many"), "--steps"),
        ("eval", (), "PATH Run folder of train_lm"),
        ("sample", ("run", "--count", "few"), "--count"),
    ],
)
def test_what_tyro_refuses_is_one_line_too(run, complaint, command, flags, says):
    line = complaint(run(command, *flags))
    assert line.startswith(f"{command}_lm: ")
    assert says in line


def test_a_corrupt_checkpoint_falls_back_loudly(run, tiny, finished, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    with (out / "last" / "model.safetensors").open("r+b") as file:
        file.seek(-5, 2)
        file.write(b"wrong")
    result = run("train", *tiny, "--max-steps", 20, "--eval-every", 10, "--resume", "auto", "--out", out)
    assert result.code == 0, result.err
    assert "WARNING: checkpoint" in result.err
    same_weights(finished, out)


# ---- parts ----


def test_help_needs_no_torch():
    code = "import sys; import lm.cli; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_presets_are_the_papers():
    for size in (128, 256, 512):
        paper = PRESETS[f"paper-{size}"]
        assert (paper.hidden_size, paper.num_layers, paper.num_attention_heads) == (size, 8, 8)
        assert (paper.head, paper.grouping, paper.prior) == ("grouped", "index", False)
        assert (paper.seq_len, paper.batch_size, paper.epochs, paper.lr) == (512, 32, 1, 1e-3)
    ablation = PRESETS["ablation"]
    assert (ablation.hidden_size, ablation.num_layers, ablation.num_attention_heads) == (64, 4, 2)
    assert (ablation.epochs, ablation.lr) == (0.5, 1e-3)
    assert all(config.preset == name for name, config in PRESETS.items())
    assert set(PRESETS) == set(get_args(get_type_hints(TrainConfig)["preset"]))


@pytest.mark.slow
def test_every_preset_runs(run, tiny, tmp_path):
    for name in PRESETS:
        small = ("--max-steps", 1, "--eval-tokens", 64, "--seq-len", 64, "--batch-size", 2)
        data = tiny[:6]
        flags = (
            "--preset",
            name,
            *data,
            *small,
            "--sample-every",
            0,
            "--device",
            "cpu",
            "--out",
            tmp_path / name,
        )
        result = run("train", *flags)
        assert result.code == 0, result.err


def test_costs_are_those_of_the_paper():
    """512 tokens at hidden 128: in the output layer 0.029 G multiply-adds against 3.29 G."""
    counts = torch.ones(50257).numpy()
    with torch.device("meta"):
        config = {"vocab_size": 50257, "n_embd": 128, "n_layer": 8, "n_head": 8, "model_type": "gpt2"}
        models = {
            head: CompressedLM(
                CompressedLMConfig(text_config=dict(config), head=head, tie_word_embeddings=head == "flat")
            )
            for head in ("flat", "grouped", "adaptive")
        }
    costs = {head: 512 * head_cost(model, counts).multiply_adds / 1e9 for head, model in models.items()}
    assert costs["flat"] == pytest.approx(3.29, abs=0.01)
    assert costs["grouped"] == pytest.approx(0.029, abs=0.001)
    assert costs["grouped"] < costs["adaptive"] < costs["flat"]
    table = parameter_table(models["flat"])
    assert table["total"] == 50257 * 128 + table["transformer"] + table["head"]
    assert table["head"] == 50257  # the bias; the weight is the embedding's
