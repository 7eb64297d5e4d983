"""Tags, descriptions, shared charts, the projector and gradient norms, as TensorBoard and torch have them."""

import errno

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from sqrtvocab.errors import RunError
from sqrtvocab.training import Logbook, read_metrics
from sqrtvocab.training.board import Board
from sqrtvocab.training.gradients import GradientNorms
from sqrtvocab.training.projector import principal_components, sprites, write_projection


def test_sections_descriptions_and_charts(tmp_path):
    board = Board("images", {"speed": "How *fast*."}, {"both": ("loss/train", "loss/validation")})
    book = Logbook(tmp_path, board=board)
    book.scalars(1, {"loss/train": 2.0, "speed/of_light": 3.0, "nobody/knows": 1.0})
    book.histogram("probability/true_group", np.array([1.0, 3.0]), 1)
    book.close()
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["loss/train"] == 2.0  # without the section
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    described = {tag: events.SummaryMetadata(tag).summary_description for tag in events.Tags()["scalars"]}
    assert described.pop("images: loss/train").startswith("Mean negative log-likelihood")
    assert described == {"images: speed/of_light": "How *fast*.", "images: nobody/knows": ""}
    drawn = events.Histograms("images: probability/true_group")[0].histogram_value
    assert (list(drawn.bucket), list(drawn.bucket_limit), drawn.sum) == ([1, 3], [0.5, 1], 0.25 + 3 * 0.75)
    layout = Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    (category,) = layout.category
    assert (category.title, category.chart[0].title) == ("images", "both")
    assert list(category.chart[0].multiline.tag) == ["images: loss/train$", "images: loss/validation$"]


def test_the_projector_finds_vectors_names_and_pictures(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(7, 100))
    pictures = np.arange(7, dtype=np.uint8)[:, None, None, None].repeat(60, 1).repeat(60, 2)
    names = ["a", "two\twords", "", "d", "e", "f", "g"]
    write_projection(tmp_path, "classes", vectors, names, sprites(pictures, 7))
    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (shown,) = config.embeddings
    table = np.loadtxt(tmp_path / shown.tensor_path, delimiter="\t")
    assert table.shape == (7, 64)
    distances = [np.linalg.norm(rows[:, None] - rows[None], axis=-1) for rows in (vectors, table)]
    assert np.allclose(*distances, rtol=1e-3)  # seven points need six dimensions
    assert (tmp_path / shown.metadata_path).read_text().split("\n") == ["a", "two words", "''", *"defg", ""]
    side = shown.sprite.single_image_dim[0]
    with Image.open(tmp_path / shown.sprite.image_path) as sheet:
        assert sheet.size == (3 * side, 3 * side)
        assert np.asarray(sheet)[::side, ::side, 0].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 255, 255]


def test_principal_components_are_those_of_the_singular_values():
    vectors = np.random.default_rng(1).normal(size=(50, 9)) * np.arange(9)
    found = principal_components(vectors, 4)
    values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    assert np.allclose(np.linalg.norm(found, axis=0), values[:4])


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_projection(tmp_path, "classes", np.eye(3), ["a", "b", "c"])
    monkeypatch.setattr("sqrtvocab.training.projector.write_text", full)
    with pytest.raises(RunError, match="projector: No space left on device"):
        write_projection(tmp_path, "classes", np.eye(3), ["a", "b", "c"])
    assert not (tmp_path / "projector_config.pbtxt").exists()  # half of it would be nonsense


@pytest.mark.parametrize("limit", [None, 1.0])
def test_gradient_norms(runtime, limit):
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    norms = GradientNorms(runtime, limit)
    for gradient in ([0.3, 0.0, 0.4], [3.0, 0.0, 4.0], [torch.inf, 0.0, 1.0]):
        parameters[0].grad, parameters[1].grad = torch.tensor(gradient[:2]), torch.tensor(gradient[2:])
        norms.measure(parameters)
        if gradient[0] == 3.0:
            kept = [3.0, 0.0, 4.0] if limit is None else [0.6, 0.0, 0.8]
            torch.testing.assert_close(torch.cat([p.grad for p in parameters]), torch.tensor(kept))
    found = norms.fetch()
    assert found.pop("gradient/norm") == pytest.approx((0.5 + 5) / 2)  # the overflow is left out
    assert found == ({} if limit is None else {"gradient/clipped": 0.5})
    assert norms.fetch() == {}
