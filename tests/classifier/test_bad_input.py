"""Bad input ends with exit code 2 and one line that names the flag or file at fault, and writes nothing."""

import json
import os
import re
import shutil
from collections import namedtuple

import pytest

Usage = namedtuple("Usage", "total used free")


def test_no_such_data_folder(train, complaint, tmp_path):
    line = complaint(train("--data", tmp_path / "none", "--out", tmp_path / "r"))
    assert line.startswith(f"train_classifier: --data {tmp_path}/none: no such file or folder")
    assert f"`shapesgen render --out {tmp_path}/none`" in line
    assert not (tmp_path / "r").exists()


def test_a_folder_that_holds_no_images(train, complaint, tmp_path):
    (tmp_path / "empty").mkdir()
    line = complaint(train("--data", tmp_path / "empty", "--out", tmp_path / "r"))
    assert f"--data {tmp_path}/empty: " in line


def test_cuda_without_cuda(train, complaint, tmp_path):
    line = complaint(train("--device", "cuda", "--out", tmp_path / "r", CUDA_VISIBLE_DEVICES=""))
    assert "--device cuda: torch" in line
    assert "finds no cuda device here; use --device cpu" in line


def test_a_run_folder_that_exists(train, complaint, finished):
    before = sorted(os.listdir(finished))
    line = complaint(train("--out", finished))
    assert line.endswith(
        f"--out {finished}: there is a run already; continue it with --resume auto or name another --out"
    )
    assert sorted(os.listdir(finished)) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--head", "flat"), "head is 'grouped' there and 'flat' here"),
        (("--modulation", "both"), "modulation is None there and 'both' here"),
        (("--only", "pattern=striped"), "num classes is 48 there and 96 here"),
        (("--grouping", "index", "--num-groups", 7), "groups is 6 there and 7 here"),
        (("--batch-size", 5), "images per step is 8 there and 10 here"),
        (("--only", "shape=cross"), "data shape is 'circle,star' there and 'circle,star,cross' here"),
        (("--eval-images", 13), "eval images is 12 there and 13 here"),
        (("--seed", 1), "data seed is 0 there and 1 here"),
    ],
)
def test_a_checkpoint_of_another_run(train, complaint, finished, flags, says):
    line = complaint(train(*flags, "--resume", "auto", "--out", finished))
    assert f"--resume: {finished} is another run: " in line
    assert says in line


def test_resuming_what_is_not_there(train, complaint, tmp_path):
    line = complaint(train("--resume", tmp_path / "none"))
    assert f"--resume {tmp_path}/none: not a run folder (it has no config.json)" in line


def test_a_corrupt_checkpoint_falls_back_loudly(train, complaint, finished, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    with (out / "last" / "model.safetensors").open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"wrong")
    result = train("--max-steps", 4, "--eval-every", 2, "--resume", "auto", "--out", out)
    assert result.code == 0
    assert "WARNING: checkpoint" in result.err
    assert "model.safetensors has changed since it was written" in result.err
    assert "last.previous, step 2" in result.err
    shutil.rmtree(out / "last.previous")
    (out / "last" / "training.pt").unlink()
    assert "no usable checkpoint" in complaint(train("--resume", "auto", "--out", out))


def test_not_enough_disk(train, complaint, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1000, 1000))
    line = complaint(train("--out", tmp_path / "r"))
    assert f"--out {tmp_path}/r: not enough disk: 0.0 GB free, the checkpoints of this model need" in line
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("out", "says"), [("file", "is a file, not a folder"), ("file/x", "Not a directory")]
)
def test_a_run_folder_that_cannot_be(train, complaint, tmp_path, out, says):
    (tmp_path / "file").touch()
    line = complaint(train("--out", tmp_path / out))
    assert line.startswith(f"train_classifier: --out {tmp_path / out}: ")
    assert line.endswith(says)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--head", "nonsense"),
            "--head nonsense: no head has this name; choose flat, grouped, grouped-linear, ",
        ),
        (("--nonsense",), "--nonsense"),
        (("--seed", 2**63), "--seed must be below 2^63"),
        (("--head", "flat", "--modulation", "film"), "--modulation is for --head grouped, not flat"),
        (("--chunk-size", 4), "--chunk-size is for --head flat, not grouped"),
        (("--rank", 4), "--rank is for --head grouped-low-rank, not grouped"),
        (("--head", "grouped-low-rank", "--rank", 513), "--rank 513 must be at most 512"),
        (("--head", "flat", "--chunk-size", 0), "--chunk-size must be at least 1, got 0"),
        (("--images-per-class", 10**9), "--images-per-class must be 1..16384, got 1000000000"),
    ],
)
def test_flags_that_make_no_sense(train, complaint, flags, says):
    assert says in complaint(train(*flags))


def test_a_cosine_cannot_be_stretched(train, complaint, tmp_path):
    flags = ["--schedule", "cosine", "--out", tmp_path / "r"]
    assert train(*flags, "--max-steps", 1).code == 0
    line = complaint(train(*flags, "--max-steps", 2, "--resume", "auto"))
    assert line == (
        f"train_classifier: --resume: {tmp_path}/r follows a cosine that cannot be stretched: total steps is "
        "1 there and 2 here; give the same --epochs and --max-steps, or --schedule constant"
    )
    assert train("--max-steps", 2, "--out", tmp_path / "r", "--resume", "auto").code == 0


def test_the_same_options_in_other_words(train, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "r")
    flags = ["--only", "shape=star", "--only", "shape=circle", "--max-steps", 4, "--eval-every", 2]
    assert train(*flags, "--resume", tmp_path / "r").code == 0


def test_fewer_images_than_ranks(train, complaint, monkeypatch, tmp_path):
    monkeypatch.setattr("sqrtvocab.training.runtime.dist.init_process_group", lambda backend: None)
    monkeypatch.setattr("sqrtvocab.training.runtime.dist.all_reduce", lambda values, operation: None)
    line = complaint(train("--out", tmp_path / "r", WORLD_SIZE="49"))
    assert "48 training and 48 validation images are too few for 49 ranks" in line


def test_all_bad_flags_at_once(train, complaint):
    line = complaint(train("--lr", -1, "--epochs", 0, "--num-groups", 7, "--only", "shape=cirle"))
    for part in (
        "--lr must be a positive number, got -1.0",
        "--epochs must be a positive number, got 0",
        "--num-groups needs --grouping index, frequency, random",
        "--only: unknown shape 'cirle' (did you mean 'circle'?)",
    ):
        assert part in line


def test_more_groups_than_classes(train, complaint, tmp_path):
    flags = ["--grouping", "index", "--num-groups", 49, "--out", tmp_path / "r"]
    assert "--num-groups 49: there are only 48 classes" in complaint(train(*flags))


def test_evaluating_what_is_no_run(score, complaint, tmp_path):
    assert "not a run folder" in complaint(score(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    line = complaint(score(tmp_path))
    assert f"{tmp_path}/config.json: not the settings of a run of train_classifier: " in line


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            {"lr": "high", "only": "shape=circle"},
            "'only' cannot be 'shape=circle'; the setting 'lr' cannot be",
        ),
        ({"data": 5}, "the setting 'data' cannot be 5"),
        ({"workers": True}, "the setting 'workers' cannot be True"),
        ({"schedule": "linear"}, "the setting 'schedule' cannot be 'linear'"),
        ({"head": "gone"}, "--head gone: no head has this name"),
    ],
)
def test_damaged_settings_of_a_run(train, bare_train, score, complaint, finished, tmp_path, damage, says):
    """The line names the file and the setting, whichever command reads it."""
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    path = out / "config.json"
    settings = json.loads(path.read_text())
    del settings["seal"]  # a change that was meant
    path.write_text(json.dumps({**settings, **damage}))
    begins = f"{path}: not the settings of a run of train_classifier: "
    for line, command in (
        (complaint(score(out)), "eval_classifier: "),
        (complaint(bare_train("--resume", out)), "train_classifier: --resume "),
        (complaint(train("--resume", "auto", "--out", out)), "train_classifier: "),
    ):
        assert line.startswith(command + begins)
        assert says in line


# ---- images on disk


def test_images_of_another_space(train, complaint, rendered, tmp_path):
    flags = ["--only", "pattern=striped", "--data", rendered, "--out", tmp_path / "r"]
    line = complaint(train(*flags))
    assert f"--data {rendered} holds 48 classes, not the 96 asked for (pattern solid there and " in line
    assert "give the --only it was rendered with" in line


def test_images_with_another_cue(train, complaint, rendered, tmp_path):
    flags = ["--rotation-cue", "none", "--data", rendered, "--out", tmp_path / "r"]
    assert f"--data {rendered} was rendered with --rotation-cue notch, not none" in complaint(train(*flags))


def test_images_with_other_labels(train, complaint, rendered, tmp_path):
    """By the settings of another seed the images stand in another order than their labels."""
    folder = tmp_path / "images"
    shutil.copytree(rendered, folder)
    for name in ("config.json", "manifest.json"):
        text = re.sub(r',\s+"seal": "[0-9a-f]+"', "", (folder / name).read_text())  # as older versions wrote
        assert '"seed": 0' in text
        (folder / name).write_text(text.replace('"seed": 0', '"seed": 1'))
    line = complaint(train("--data", folder, "--out", tmp_path / "r"))
    assert "has label" in line
    assert "but by the manifest it shows class" in line


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_found_damaged_in_mid_run(train, rendered, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(
        "classifier.images.shapes.check_labels", lambda images, folder: None
    )  # which would find it
    folder = tmp_path / "images"
    shutil.copytree(rendered, folder)
    (shard,) = (folder / "data").glob("train-*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    shard.write_bytes(data)
    result = train("--data", folder, "--workers", workers, "--out", tmp_path / "r")
    assert result.code == 1
    line = result.err.splitlines()[-1]
    assert line.startswith(f"train_classifier: --data {folder}: data/{shard.name}: ")
    assert "Traceback" not in result.err


def test_a_truncated_shard(train, complaint, rendered, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(rendered, folder)
    (shard,) = (folder / "data").glob("train-*")
    shard.write_bytes(shard.read_bytes()[:-100])
    line = complaint(train("--data", folder, "--out", tmp_path / "r"))
    assert shard.name in line
