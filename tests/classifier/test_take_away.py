"""A model that can be taken away: `predict_classifier`, `export_classifier`, the model card."""

import builtins
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from classifier import cli
from classifier.card import command
from classifier.cnn import Encoder
from classifier.export import Deployed, _write_torch, difference, middle_square
from classifier.images.decode import decode
from classifier.model import make_classifier
from classifier.presets import PRESETS
from sqrtvocab import HEADS, Partition

COLOURS = {"ant": "red", "bee": "lime", "cat": "blue", "dog": "white"}


@pytest.fixture(scope="session")
def kept(forked, tmp_path_factory):
    """A run on pictures of four colours, the pictures, and the environment. Changes go into copies."""
    place = tmp_path_factory.mktemp("kept")
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (place / "pictures" / name).mkdir(parents=True)
        for i in range(10):
            size = tuple(int(side) for side in rng.integers(12, 60, 2))
            Image.new("RGB", size, colour).save(
                place / "pictures" / name / f"{i}.{'jpg' if i % 2 else 'png'}"
            )
    argv = [
        "--image-size", 16, "--batch-size", 8, "--epochs", 10, "--eval-every", 1000, "--workers", 0,
        "--device", "cpu", "--data", place / "pictures", "--out", place / "run",
    ]  # fmt: skip
    env = {"SQRTVOCAB_CACHE": str(place / "cache")}
    result = forked(cli.train_main, argv, place, env).wait()
    assert result.code == 0, result.err
    return place / "run", place / "pictures", env


@pytest.fixture
def predict(forked, kept, tmp_path):
    run, _, env = kept

    def finish(*argv):
        argv = [run, *argv, "--device", "cpu", "--workers", 0]
        return forked(cli.predict_main, argv, tmp_path, env).wait()

    return finish


@pytest.fixture
def export(forked, kept, tmp_path):
    run, _, env = kept

    def finish(*argv, main=cli.export_main):
        return forked(main, [run, *argv], tmp_path, env).wait()

    return finish


# ---- predict_classifier


def test_a_folder_of_pictures_is_named(predict, kept):
    _, pictures, _ = kept
    result = predict(pictures, "--top-k", 2, "--json", "--batch-size", 7)
    assert result.code == 0, result.err
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["file"] for record in records] == sorted(map(str, pictures.rglob("*.*")))
    for record in records:
        first, second = record["classes"]
        assert record["file"].split("/")[-2] == first["name"] == list(COLOURS)[first["class"]]
        assert 1 >= first["probability"] >= second["probability"] > 0


def test_damaged_pictures_do_not_stop_the_rest(predict, complaint, tmp_path):
    Image.new("RGB", (300, 77), "red").save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:100])
    (tmp_path / "c.txt").write_text("a file that was named is tried")
    Image.new("L", (9, 9), 255).save(tmp_path / "d.png")
    names = [tmp_path / name for name in ("a.jpg", "b.jpg", "c.txt", "d.png")]
    result = predict(*names, "--top-k", 1)
    assert result.code == 0, result.err
    first, last = result.out.splitlines()
    assert first.startswith(f"{names[0]}\tant ")
    assert last.startswith(f"{names[3]}\tdog ")
    assert f"{names[1]}: not a readable picture (" in result.err
    assert f"{names[2]}: not a readable picture (" in result.err
    assert result.err.splitlines()[-1] == "2 of 4 pictures cannot be read"
    records = [json.loads(line) for line in predict(*names, "--json").out.splitlines()]
    assert sorted("error" in record for record in records) == [False, False, True, True]
    assert "none of the 1 pictures can be read" in predict(names[1]).err.splitlines()[-1]


def test_what_cannot_be_named_at_all(predict, complaint, tmp_path):
    assert f"{tmp_path}/none: no such file or folder" in complaint(predict(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty: no pictures in it" in complaint(predict(tmp_path / "empty"))
    assert "after RUN" in complaint(predict()) or "required" in complaint(predict())


# ---- export_classifier


def pixels(size=(30, 50)):
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (3, *size, 3), np.uint8)


@pytest.mark.parametrize("side", [(16, 16), (40, 31), (16, 50), (9, 12), (64, 64), (100, 37)])
def test_the_middle_square_is_the_decoders(side, tmp_path):
    """Within one step of 255, and mostly equal; exactly for a square of the right size."""
    image = pixels(side)[0]
    Image.fromarray(image).save(tmp_path / "x.png")
    expected = decode((tmp_path / "x.png").read_bytes(), 16)  # [16, 16, 3]
    found = middle_square(torch.from_numpy(image).permute(2, 0, 1)[None], 16)[0].permute(1, 2, 0).numpy()
    gap = np.abs(found - expected.astype(np.float32))
    assert gap.max() <= (0 if side == (16, 16) else 1)
    assert np.mean(gap > 0) < 0.05


@pytest.mark.slow
def test_an_exported_file_names_pictures_of_any_size_as_the_run_does(export, predict, kept, tmp_path):
    import onnxruntime

    result = export("--out", tmp_path / "model.onnx", "--top-k", 3)
    assert result.code == 0, result.err
    assert "checked on 4 validation images: probabilities within 0.1% of the model's" in result.out
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert labels == list(COLOURS)
    weights = (kept[0] / "best" / "model.safetensors").stat().st_size
    assert (tmp_path / "model.onnx").stat().st_size < 1.05 * weights
    assert not list(tmp_path.glob(".*"))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for size in ((16, 16), (70, 41), (5, 9)):
        Image.new("RGB", size, "blue").save(tmp_path / "x.png")
        record = json.loads(predict(tmp_path / "x.png", "--json", "--top-k", 3).out)
        picture = np.asarray(Image.open(tmp_path / "x.png").convert("RGB"))[None]
        shares, classes = session.run(None, {"images": picture})
        assert [labels[c] for c in classes[0]] == [one["name"] for one in record["classes"]]
        np.testing.assert_allclose(shares[0], [one["probability"] for one in record["classes"]], rtol=1e-3)


@pytest.mark.slow
def test_a_torch_program_does_too(export, tmp_path):
    result = export("--out", tmp_path / "model.pt2", "--format", "torch")
    assert result.code == 0, result.err
    module = torch.export.load(tmp_path / "model.pt2").module()
    for size in ((16, 16), (41, 70), (70, 41)):
        shares, classes = module(torch.from_numpy(pixels(size)))
        assert shares.shape == classes.shape == (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("order", [False, True])
def test_onnx_of_all_heads(head, order, tmp_path):
    """Untrained, so that nothing is far from a tie."""
    import onnxruntime

    from classifier.export import _traced, _write_onnx

    class Small:
        image_size, channels = 16, 3

    torch.manual_seed(0)
    partition = Partition.random(60, 7, seed=1) if order else Partition(60, 7)
    model = make_classifier(head, partition, Encoder(16), (5, 12)).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.head.learn_classes(torch.randn(60, model.head.in_features), torch.arange(60))  # of examples
    deployed = Deployed(model, 16, 5)
    _write_onnx(_traced(deployed, Small()), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    with torch.no_grad():
        for size in ((16, 16), (40, 33)):
            images = torch.from_numpy(pixels(size))
            shares, classes = session.run(None, {"images": images.numpy()})
            x = middle_square(images.permute(0, 3, 1, 2), 16)
            dense = model.head.log_prob(model.encoder(x)).exp()
            best, expected = dense.topk(5)
            np.testing.assert_allclose(shares, best.numpy(), rtol=1e-4)
            assert np.array_equal(classes, expected.numpy())


def test_a_file_that_is_not_the_model_is_not_kept(export, monkeypatch, tmp_path):
    monkeypatch.setattr("classifier.export._write_onnx", lambda program, path: path.touch())
    monkeypatch.setattr("classifier.export._traced", lambda deployed, trained: None)

    def wrong(path):
        def run(images):
            return np.full((len(images), 2), 0.5, np.float32), np.tile([0, 1], (len(images), 1))

        return run

    monkeypatch.setattr("classifier.export._open_onnx", wrong)
    result = export("--out", tmp_path / "model.onnx", "--top-k", 2)
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith(
        "export_classifier: the exported file is not the model: the "
    )
    assert not list(tmp_path.glob("*model*")) + list(tmp_path.glob("labels.json"))


def test_a_torch_program_on_a_full_disk():
    """Where torch's own writer would abort the process."""
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(1, 2),))
    with pytest.raises(OSError, match="No space left on device"):
        _write_torch(program, Path("/dev/full"))


def test_what_counts_as_a_difference():
    dense = np.array([[0.5, 0.3, 0.19999, 0.00001]], np.float32)
    best = np.array([[0.5, 0.3]], np.float32)
    assert difference(dense, best, best, np.array([[0, 1]])) is None
    assert difference(dense, best, best * 1.0005, np.array([[0, 1]])) is None
    assert "class at place 2" in difference(dense, best, best, np.array([[0, 2]]))
    assert "probability at place 1" in difference(dense, best, best * 1.01, np.array([[0, 1]]))
    assert "probability at place 1" in difference(dense, best, best * np.nan, np.array([[0, 1]]))
    assert "not 2 different" in difference(dense, best, best, np.array([[0, 0]]))
    tie = np.array([[0.4, 0.4, 0.2]], np.float32)
    assert difference(tie, tie[:, :2], tie[:, :2], np.array([[1, 0]])) is None


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(export, complaint, monkeypatch, tmp_path, missing):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == missing:
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    line = complaint(export("--out", tmp_path / "model.onnx"))
    assert f"--format onnx needs {missing}: pip install 'sqrtvocab[export]'" in line


def test_what_cannot_be_exported(export, complaint, forked, kept, tmp_path):
    assert f"--out {tmp_path}: a folder" in complaint(export("--out", tmp_path))
    for name in ("config.json", "labels.json", "model.pt2"):
        line = complaint(export("--out", tmp_path / name))
        assert f"--out {tmp_path / name}: expected a name that ends in .onnx" in line
    (tmp_path / "file").touch()
    line = complaint(export("--out", tmp_path / "file" / "x.onnx"))
    assert f"--out {tmp_path}/file/x.onnx: cannot be written (" in line
    assert "no such file or folder" in complaint(export("--data", tmp_path / "none"))
    result = forked(cli.export_main, [tmp_path], tmp_path, {}).wait()
    assert "not a run folder" in complaint(result)


# ---- the model card


def test_the_card_says_what_the_model_is(kept):
    run, pictures, _ = kept
    settings = json.loads((run / "config.json").read_text())
    for name in ("best", "last"):
        card = (run / name / "README.md").read_text()
        assert "# 4 classes: `cnn`, head `grouped-linear`" in card
        assert (
            f"data: `{pictures.name}`, 32 training images (pictures 32, digest {settings['data_digest']}"
            in card
        )
        assert "| accuracy/overall | 1 |" in card
        assert str(pictures.parent) not in card
    flags = shlex.split(command(settings))
    assert flags[:3] == ["train_classifier", "--preset", "pictures"]
    assert flags[flags.index("--image-size") + 1] == "16"
    assert command({**settings, **PRESETS["pictures"].to_json()}) == "train_classifier --preset pictures"
