"""The commands on the user's own pictures: from a folder to a scored model, and clear refusals."""

import csv
import io
import json
import shutil
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.torch import load_file

from classifier import cli

# Every class has a colour of its own, so that a few steps are enough to see whether labels and pixels belong
# together.
COLOURS = {"ant": "red", "bee": "lime", "cat": "blue", "dog": "white", "elk": "black", "fox": "yellow"}
MODES = (("png", "RGB"), ("jpg", "RGB"), ("png", "P"), ("png", "RGBA"), ("gif", "P"), ("bmp", "RGB"))
FLAGS = [
    "--image-size", "16", "--batch-size", "8", "--eval-every", "1000", "--workers", "0", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Six classes of ten pictures of many sizes and modes. Copy it before changing anything in it."""
    root = tmp_path_factory.mktemp("pictures") / "animals"
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(10):
            suffix, mode = MODES[i % len(MODES)]
            size = tuple(int(side) for side in rng.integers(12, 40, 2))
            Image.new("RGB", size, colour).convert(mode).save(root / name / f"{i}.{suffix}")
    return root


@pytest.fixture
def run(forked, tmp_path):
    """`run("--data", FOLDER, ...)` runs `train_classifier` with a cache of the test's own."""

    def finish(*flags, **env):
        env = {"SQRTVOCAB_CACHE": str(tmp_path / "cache"), **env}
        return forked(cli.train_main, [*FLAGS, *flags], tmp_path, env).wait()

    return finish


@pytest.fixture
def rate(forked, tmp_path):
    """`rate(RUN, ...)` runs `eval_classifier`, with the same cache."""

    def finish(*flags):
        env = {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}
        return forked(cli.eval_main, [*flags, "--device", "cpu", "--workers", 0], tmp_path, env).wait()

    return finish


@pytest.fixture(scope="session")
def trained(forked, folder, tmp_path_factory):
    """A run on the folder. Copy it before changing anything in it."""
    place = tmp_path_factory.mktemp("trained")
    argv = [*FLAGS, "--data", folder, "--epochs", 12, "--out", place / "run"]
    result = forked(cli.train_main, argv, place, {"SQRTVOCAB_CACHE": str(place / "cache")}).wait()
    assert result.code == 0, result.err
    assert "Traceback" not in result.err
    return place / "run", result.err


def test_a_folder_of_pictures_trains_with_one_command(trained, folder):
    out, said = trained
    assert f"6 classes, 48 training images in {folder}" in said
    assert "10% of the training pictures, by class, are kept for validation; 10% of" in said
    assert "head       grouped-linear, " in said
    assert "ceiling" not in said
    config = json.loads((out / "config.json").read_text())
    assert (config["preset"], config["head"], config["num_classes"]) == ("pictures", "grouped-linear", 6)
    assert json.loads((out / "best" / "classes.json").read_text()) == list(COLOURS)
    assert json.loads((out / "last" / "state.json").read_text())["metrics"]["accuracy/overall"] == 1.0


def test_scored_on_its_test_pictures(rate, trained, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained[0], out)
    (out / "eval-test-confused.png").touch()  # of an evaluation that found some
    result = rate(out)
    assert result.code == 0, result.err
    assert {path.name for path in out.glob("*.png")} == {"eval-test-reliability.png", "eval-test-groups.png"}
    report = json.loads((out / "eval-test.json").read_text())
    assert (report["images"], report["classes"], report["accuracy"]["overall"]) == (6, 6, 1.0)
    assert "ceiling" not in report
    assert "ceiling" not in result.out


def test_a_picture_of_any_size_is_named(rate, trained, tmp_path):
    Image.new("RGB", (300, 77), COLOURS["fox"]).save(tmp_path / "x.jpg")
    result = rate(trained[0], "--image", tmp_path / "x.jpg", "--top-k", 2)
    assert result.code == 0, result.err
    first, second = result.out.splitlines()[-2:]
    assert first.split()[1:] == ["5", "fox"]
    assert second.split()[2] in COLOURS
    (tmp_path / "x.jpg").write_bytes(b"x")
    result = rate(trained[0], "--image", tmp_path / "x.jpg")
    assert result.code == 2
    assert "x.jpg: not a readable picture (" in result.err


def test_scored_on_other_pictures_by_the_names_of_the_classes(rate, complaint, trained, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained[0], out)
    table = tmp_path / "other.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "class", "split"])
        for name in ("fox", "bee"):
            Image.new("RGB", (20, 20), COLOURS[name]).save(tmp_path / f"{name}.png")
            rows.writerow([f"{name}.png", name, "test"])
    result = rate(out, "--data", table)
    assert result.code == 0, result.err
    assert json.loads((out / "eval-test.json").read_text())["accuracy"]["overall"] == 1.0
    table.write_text(table.read_text().replace("bee\r\n", "wasp\r\n").replace(",bee,", ",wasp,"))
    line = complaint(rate(out, "--data", table))
    assert "the class 'wasp' of bee.png is not one of the model's 6 classes, such as 'ant'" in line


def test_other_kinds_of_images_than_the_model_knows(
    rate, complaint, forked, small, trained, finished, folder, rendered, tmp_path
):
    line = complaint(rate(trained[0], "--data", rendered))
    assert "its labels are not the model's, which knows pictures of 6 classes" in line
    flags = [finished, "--data", folder, "--device", "cpu", "--workers", 0]
    line = complaint(forked(small(cli.eval_main), flags, tmp_path, {}).wait())
    assert "its labels are not the model's, which knows shapes" in line


def test_killed_and_resumed_it_is_the_same_run(run, folder, tmp_path):
    flags = ["--data", folder, "--augment", "standard", "--flip", "horizontal", "--max-steps"]
    assert run(*flags, 4, "--schedule", "constant", "--out", tmp_path / "whole").code == 0
    assert run(*flags, 2, "--schedule", "constant", "--out", tmp_path / "parts").code == 0
    moved = tmp_path / "moved" / "animals"
    shutil.copytree(folder, moved)
    again = ["--data", moved, "--max-steps", 4, "--workers", 1, "--resume", tmp_path / "parts"]
    result = run(*again)
    assert result.code == 0, result.err
    one, other = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_other_pictures_are_another_run(run, complaint, trained, folder, tmp_path):
    out, other = tmp_path / "run", tmp_path / "animals"
    shutil.copytree(trained[0], out)
    shutil.copytree(folder, other)
    Image.new("RGB", (5, 5)).save(other / "elk" / "new.png")
    line = complaint(run("--data", other, "--resume", out))
    assert "is another run: " in line
    assert "data digest is " in line


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet_v3_small"])
def test_backbones_of_torchvision(run, rate, folder, tmp_path, backbone):
    out = tmp_path / "run"
    flags = ["--data", folder, "--backbone", backbone, "--image-size", 32, "--grey", "--batch-size", 47]
    result = run(*flags, "--max-steps", 2, "--out", out)  # the second step has one image
    assert result.code == 0, result.err
    assert f"backbone   {backbone} on 32 x 32 pixels, weights none" in result.err
    assert run(*flags, "--resume", out, "--max-steps", 3, "--schedule", "constant").code == 0
    result = rate(out, "--split", "validation")
    assert result.code == 0, result.err
    scored = json.loads((out / "eval-validation.json").read_text())
    metrics = json.loads((out / "best" / "state.json").read_text())["metrics"]
    assert scored["loss"] == pytest.approx(metrics["loss/validation"], rel=1e-4)


def test_weights_of_another_run(run, trained, folder, tmp_path):
    weights = trained[0] / "best" / "model.safetensors"
    result = run(
        "--data", folder, "--weights", weights, "--max-steps", 1, "--lr", 1e-9, "--out", tmp_path / "r"
    )
    assert result.code == 0, result.err
    new, old = load_file(tmp_path / "r" / "last" / "model.safetensors"), load_file(weights)
    assert abs(new["encoder.embed.weight"] - old["encoder.embed.weight"]).max() < 1e-6


def test_shapes_in_another_size_and_grey(train, score, tmp_path):
    out = tmp_path / "run"
    result = train("--image-size", 24, "--grey", "--augment", "shift", "--max-steps", 1, "--out", out)
    assert result.code == 0, result.err
    assert load_file(out / "last" / "model.safetensors")["encoder.convolutions.0.weight"].shape[1] == 1
    assert score(out, "--images", 12).code == 0
    assert (
        train("--image-size", 24, "--grey", "--augment", "shift", "--resume", out, "--max-steps", 2).code == 0
    )


@pytest.mark.parametrize("form", ["webdataset", "folder"])
def test_rendered_shapes_in_every_format(train, forked, rendered, tmp_path, tiny_flags, form):
    """The same run, to the bit, as on the Parquet files."""
    import shapesgen.cli

    space = tiny_flags[: tiny_flags.index("--batch-size")]
    argv = ["render", "--out", tmp_path / "images", *space, "--workers", 1, "--format", form]
    assert forked(shapesgen.cli.main, argv, tmp_path, {}).wait().code == 0
    for data in (rendered, tmp_path / "images"):
        assert train("--max-steps", 2, "--data", data, "--out", tmp_path / data.parent.name).code == 0
    one = load_file(tmp_path / rendered.parent.name / "last" / "model.safetensors")
    other = load_file(tmp_path / tmp_path.name / "last" / "model.safetensors")
    assert all(np.array_equal(one[key], other[key]) for key in one)


# ---- bad input


def test_damaged_pictures(run, complaint, folder, tmp_path):
    root = tmp_path / "animals"
    shutil.copytree(folder, root)
    for i in range(7):
        (root / "cat" / f"bad{i}.jpg").write_bytes(b"\xff\xd8\xff broken")
    line = complaint(run("--data", root, "--out", tmp_path / "r"))
    assert f"--data {root}: 7 of 67 pictures are damaged: cat/bad0.jpg (" in line
    assert line.endswith("and 2 more; --skip-damaged continues without them")
    assert not (tmp_path / "r").exists()
    result = run("--data", root, "--skip-damaged", "--max-steps", 1, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert "left out: 7 of 67 pictures are damaged: " in result.err


def test_one_picture_in_a_class_and_an_empty_folder(run, folder, tmp_path):
    root = tmp_path / "animals"
    shutil.copytree(folder, root)
    (root / "gnu").mkdir()
    (root / "yak").mkdir()
    Image.new("RGB", (9, 9)).save(root / "yak" / "1.png")
    result = run("--data", root, "--max-steps", 1, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert "7 classes, 49 training images" in result.err
    assert "folders left out, for they hold no pictures: 1, such as gnu" in result.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--backbone", "resnet19"), "--backbone resnet19: no such model; did you mean resnet18, "),
        (("--weights", "nowhere"), "--weights nowhere: no such file; expected none, default or a file"),
        (("--preset", "paper"), "--grouping aligned: nothing tells how these classes are made; use index or"),
        (("--head", "factored"), "--head factored: it needs classes that are made of attributes; --radices"),
        (("--only", "shape=star"), "--only: for shapes, not for --data "),
        (("--images-per-class", 5), "--images-per-class: for shapes, not for --data "),
        (("--num-groups", 7), "--num-groups 7: there are only 6 classes"),
        (("--valid-fraction", 0.6, "--test-fraction", 0.5), "together must be less than 1"),
        (("--valid-fraction", 0), "60 training and 0 validation images are too few"),
        (("--image-size", 4), "--image-size 4: --backbone cnn needs at least 8"),
        (("--image-size", 0), "--image-size must be at least 1, got 0"),
        (("--cache-limit", -1), "--cache-limit must not be negative"),
    ],
)  # fmt: skip
def test_flags_that_make_no_sense(run, complaint, folder, tmp_path, flags, says):
    if flags[0] == "--valid-fraction" and len(flags) == 2:
        flags += ("--test-fraction", 0)
    line = complaint(run("--data", folder, *flags, "--out", tmp_path / "r"))
    assert says in line
    assert not (tmp_path / "r").exists()


def test_flags_of_pictures_are_not_for_shapes(train, complaint, tmp_path):
    line = complaint(train("--skip-damaged", "--valid-fraction", 0.2, "--out", tmp_path / "r"))
    assert line.endswith(
        "--valid-fraction, --skip-damaged: for your own pictures, not for shapes drawn on the fly"
    )


def test_a_picture_that_vanishes_in_mid_run(run, folder, tmp_path, monkeypatch):
    """Decoded on the fly, by a worker."""
    root = tmp_path / "animals"
    shutil.copytree(folder, root)
    from classifier import train as module

    def spoil(*arguments):
        for path in root.rglob("*.png"):
            path.write_bytes(b"")
        return original(*arguments)

    original = module.training_batches
    monkeypatch.setattr(module, "training_batches", spoil)
    flags = ["--data", root, "--cache-limit", 0, "--workers", 1, "--out", tmp_path / "r"]
    result = run(*flags)
    assert result.code == 1
    line = result.err.splitlines()[-1]
    assert line.startswith(f"train_classifier: --data {root}: ")
    assert line.endswith(".png was whole when the run began, and now: the file is empty")
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_two_ranks_share_a_cache_and_the_statistics_of_batch_norms(forked, rate, folder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    job["SQRTVOCAB_CACHE"] = str(tmp_path / "cache")
    flags = [*FLAGS, "--data", folder, "--backbone", "resnet18", "--image-size", 32, "--max-steps", 3]
    ranks = [
        forked(
            cli.train_main,
            [*flags, "--out", tmp_path / "r"],
            tmp_path,
            {**job, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    first, second = [rank.wait() for rank in ranks]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert second.err == ""
    # One process with rank 0's statistics scores what both together scored.
    assert rate(tmp_path / "r", "--split", "validation").code == 0
    scored = json.loads((tmp_path / "r" / "eval-validation.json").read_text())
    metrics = json.loads((tmp_path / "r" / "last" / "state.json").read_text())["metrics"]
    assert scored["loss"] == pytest.approx(metrics["loss/validation"], rel=1e-4)


def test_two_classes_and_a_named_class_without_pictures(run, tmp_path):
    """The labels of a Parquet file keep their numbers; the prior of a class never seen is finite."""
    rows = {"image": [], "label": []}
    for i in range(20):
        file = io.BytesIO()
        Image.new("RGB", (9, 9), ("red", "blue")[i % 2]).save(file, "png")
        rows["image"].append({"bytes": file.getvalue(), "path": f"{i}.png"})
        rows["label"].append((0, 2)[i % 2])
    features = {"label": {"_type": "ClassLabel", "names": ["red", "green", "blue"]}}
    table = pa.table(rows).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, tmp_path / "colours.parquet")
    result = run("--data", tmp_path / "colours.parquet", "--max-steps", 2, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert "classes without a training picture: 1 of 3" in result.err
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "b").mkdir()
    for i in range(10):
        Image.new("RGB", (9, 9), "red").save(tmp_path / "two" / "a" / f"{i}.png")
        Image.new("RGB", (9, 9), "blue").save(tmp_path / "two" / "b" / f"{i}.png")
    assert run("--data", tmp_path / "two", "--max-steps", 2, "--out", tmp_path / "two-run").code == 0
