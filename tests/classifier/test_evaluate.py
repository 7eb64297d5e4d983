"""`eval_classifier`, and the scores themselves against a count by hand."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from classifier.cnn import Encoder
from classifier.config import TrainConfig
from classifier.evaluate import evaluate, name_groups
from classifier.model import Classifier, make_classifier
from shapesgen import ShapesDataset
from shapesgen.attributes import AttributeSpace
from sqrtvocab import HEADS, Partition
from sqrtvocab.errors import UserError


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("num_groups", [1, 5, 23])
def test_scores_equal_a_count_on_the_dense_distribution(alone, head, num_groups):
    torch.manual_seed(0)
    partition = Partition.random(23, num_groups, seed=1)
    model = make_classifier(head, partition, radices=(23,))
    if model.head.from_examples:
        model.head.learn_classes(torch.randn(23, model.encoder.width), torch.arange(23))
    images, target = torch.randint(0, 256, (20, 3, 100, 100), dtype=torch.uint8), torch.randint(0, 23, (20,))
    result = evaluate(
        model, [(images[:12], target[:12]), (images[12:], target[12:])], partition, alone, top_k=3
    )

    with torch.no_grad():
        dense = model.head.log_prob(model.encoder(images)).exp()  # [20, 23]
    group_of = partition.split(torch.arange(23))[0]  # [23]
    per_group = torch.zeros(20, num_groups).index_add(1, group_of, dense)  # [20, G]
    grouped = head.startswith("grouped")
    guess = per_group.argmax(1) if grouped else group_of[dense.argmax(1)]
    in_group = dense.masked_fill(group_of != group_of[target][:, None], 0)  # the true group's classes only
    accuracies = result.accuracies()
    assert np.array_equal(result.target, target.numpy())
    assert accuracies["accuracy/overall"] == (dense.argmax(1) == target).double().mean()
    assert accuracies["accuracy/group"] == (guess == group_of[target]).double().mean()
    assert accuracies["accuracy/member_given_group"] == (in_group.argmax(1) == target).double().mean()
    assert accuracies["accuracy/top3"] == (dense.topk(3).indices == target[:, None]).any(1).double().mean()
    assert result.loss == pytest.approx(-dense.log().gather(1, target[:, None]).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (("--head", "factored"), {}),
        (("--modulation", "both"), {"modulation": "both"}),
        (("--head", "flat", "--chunk-size", 3), {"chunk_size": 3}),
        (("--head", "grouped-low-rank", "--rank", 5), {"rank": 5}),
    ],
)
def test_a_run_with_options_of_its_head_is_scored(train, score, tmp_path, flags, options):
    out = tmp_path / "r"
    result = train(*flags, "--max-steps", 1, "--out", out)
    assert result.code == 0, result.err
    config = json.loads((out / "config.json").read_text())
    assert TrainConfig.from_json(config).given_head_options() == options
    result = score(out, "--split", "validation", "--images", 12)
    assert result.code == 0, result.err
    scored = json.loads((out / "eval-validation.json").read_text())
    trained = json.loads((out / "last" / "state.json").read_text())["metrics"]
    assert scored["loss"] == pytest.approx(trained["loss/validation"], rel=1e-5)
    assert scored["accuracy"]["group"] == pytest.approx(trained["accuracy/group"])


def test_settings_of_older_runs_are_read(finished):
    config = json.loads((finished / "config.json").read_text())
    for name in TrainConfig.ADDED_LATER:
        del config[name]
    older = TrainConfig.from_json(config)
    assert older.given_head_options() == {}
    assert (older.backbone, older.image_size, older.augment) == ("cnn", 100, "none")
    del config["head"]
    with pytest.raises(UserError, match="'head' is missing"):
        TrainConfig.from_json(config)


def test_attributes_are_counted_one_by_one(alone):
    space = AttributeSpace.full()
    true = space.class_id(
        shape="star",
        pattern="dotted",
        rotation=60,
        colour="red",
        size="tiny",
        texture="none",
        opacity=1,
        border="solid",
    )
    near = space.class_id(
        shape="star",
        pattern="dotted",
        rotation=0,
        colour="red",
        size="tiny",
        texture="none",
        opacity=1,
        border="solid",
    )
    partition = Partition.aligned(space.radices)

    class Oracle(Classifier):
        """Right for the first image; wrong in the rotation for the second."""

    model = Oracle(Encoder(), make_classifier("grouped", partition).head)
    model.head._topk = lambda hidden, k: (torch.zeros(2, k), torch.tensor([[true] * k, [near] * k]))
    images = torch.zeros(2, 3, 100, 100, dtype=torch.uint8)
    result = evaluate(model, [(images, torch.tensor([true, true]))], partition, alone)
    assert result.attributes(space) == {name: 0.5 if name == "rotation" else 1.0 for name in space.names}


def test_the_table_and_the_json_agree(score, finished):
    result = score(finished, "--split", "test", "--top-k", 3)
    assert result.code == 0, result.err
    report = json.loads((finished / "eval-test.json").read_text())
    assert report["images"] == 48
    assert set(report["accuracy"]) == {"overall", "group", "member given group", "top3"}
    assert report["ceiling"]["overall"] == 1.0
    table = {line[:20].strip(): line[20:].split() for line in result.out.splitlines()[2:] if line.strip()}
    for name, share in {**report["accuracy"], **report["attributes"]}.items():
        assert table[name][0] == f"{share:.2%}"
    assert table["shape"] == [f"{report['attributes']['shape']:.2%}", "100.0%", "50.00%"]
    assert table["mean over classes"][0] == f"{report['mean_over_classes']:.2%}"
    names = re.search(r"eval-test-\{(.*)\}\.png", result.out)[1].split(",")
    assert {"confused", "reliability", "groups", "shape"} <= set(names)
    for name in names:
        with Image.open(finished / f"eval-test-{name}.png") as picture:
            assert min(picture.size) > 300


def test_a_validation_score_can_be_had_again(score, finished):
    """The best checkpoint, scored on the images of the training's own evaluations, gives the accuracy logged
    then."""
    best = json.loads((finished / "best" / "state.json").read_text())["metrics"]
    flags = ["--split", "validation", "--images", 12]
    assert score(finished, *flags).code == 0
    report = json.loads((finished / "eval-validation.json").read_text())
    assert report["accuracy"]["overall"] == best["accuracy/overall"]
    assert report["loss"] == pytest.approx(best["loss/validation"], rel=1e-6)


def test_naming_a_picture(score, finished, tmp_path):
    space = AttributeSpace.only({"shape": ["circle"]})
    pixels = ShapesDataset("test", space, images_per_class=3).batch([0])[0][0]
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = score(finished, "--image", tmp_path / "a.png", "--top-k", 4)
    assert result.code == 0, result.err
    device, header, *rows = result.out.splitlines()
    assert "float32 (" in device  # with the reason
    assert header.split() == ["probability", "class", *space.names]
    assert len(rows) == 4
    probabilities = [float(row.split("%")[0]) for row in rows]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(row.split()[2] in ("circle", "star") for row in rows)


def test_pictures_that_cannot_be_named(score, complaint, finished, tmp_path):
    def name(path):
        return complaint(score(finished, "--image", path))

    assert "no such file" in name(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("not a picture")
    assert "not a readable picture" in name(tmp_path / "text.png")
    Image.effect_noise((50, 50), 90).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:999])
    assert "not a readable picture" in name(tmp_path / "cut.png")


def test_transparency_is_white(score, finished, tmp_path):
    outputs = []
    for mode, colour in (("RGBA", (200, 0, 0, 0)), ("RGB", (255, 255, 255))):
        Image.new(mode, (100, 100), colour).save(tmp_path / f"{mode}.png")
        outputs.append(score(finished, "--image", tmp_path / f"{mode}.png").out)
    assert outputs[0] == outputs[1]


def test_groups_are_named_by_what_their_classes_share():
    space = AttributeSpace.parse_only(["shape=circle,star", "pattern=solid", "size=huge", "texture=none"])
    counts = np.ones(space.num_classes, dtype=np.int64)
    classes = [str(number) for number in range(space.num_classes)]

    def names(groups):
        name = name_groups(Partition(space.num_classes, groups), classes, counts, space)
        return [name(group) for group in range(groups)]

    assert names(2) == ["circle", "star"]
    assert names(12)[:2] == ["circle 0°", "circle 60°"]
    halves = names(24)  # two for each rotation: the colours are cut in two
    assert halves[0].startswith("circle 0° red to ")
    assert len(set(halves)) == 24
