"""Encoders by name: torchvision's models give what they give without their last layer."""

import sys
import urllib.error

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from classifier.backbones import Backbone, default_size, make_encoder
from classifier.cnn import Encoder
from sqrtvocab.errors import UserError

# One of each family, small: all ways in which the last layer is stored.
AT_32 = {
    "resnet18": 512, "mobilenet_v2": 1280, "mobilenet_v3_small": 1024, "efficientnet_b0": 1280,
    "shufflenet_v2_x0_5": 1024, "mnasnet0_5": 1280, "regnet_y_400mf": 440, "squeezenet1_1": 512,
    "densenet121": 1024, "googlenet": 1024, "convnext_tiny": 768, "swin_t": 768, "vit_b_16": 768,
}  # fmt: skip
AT_OWN_SIZE = {"alexnet": (64, 4096), "vgg11": (32, 4096), "inception_v3": (80, 2048), "maxvit_t": (224, 512)}


def pixels(size, channels=3, count=2):
    return torch.randint(256, (count, channels, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "squeezenet1_1"])
def test_an_embedding_is_what_the_last_layer_would_see(name):
    encoder = make_encoder(name, 32, 3).eval()
    whole = models.get_model(name).eval()
    missing, unexpected = whole.load_state_dict(encoder.model.state_dict(), strict=False)
    assert not unexpected
    assert len(missing) == 2  # weight and bias of the last layer
    seen = []
    layer = whole.get_submodule(missing[0].rpartition(".")[0])
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    images = pixels(32)
    with torch.no_grad():
        embedding = encoder(images)
        x = images / 255
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        whole((x - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1))
    expected = seen[0]
    if expected.dim() == 4:  # SqueezeNet scores every place before it averages
        expected = torch.relu(expected).mean((2, 3))
    torch.testing.assert_close(embedding, expected, rtol=1e-4, atol=1e-4)
    assert encoder.width == embedding.shape[1]


@pytest.mark.parametrize("name", AT_32)
def test_families_at_32_pixels(name):
    encoder = make_encoder(name, 32, 3).train()
    embedding = encoder(pixels(32))
    assert embedding.shape == (2, AT_32[name])
    assert encoder.width == AT_32[name]
    embedding.sum().backward()  # nothing is left over that gets no gradient: ranks would wait for it
    assert [key for key, value in encoder.named_parameters() if value.grad is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_OWN_SIZE)
def test_families_that_need_larger_images(name):
    size, width = AT_OWN_SIZE[name]
    encoder = make_encoder(name, size, 3).train()
    assert encoder(pixels(size)).shape == (2, width)


def test_grey_is_three_times_the_same():
    encoder = make_encoder("resnet18", 32, 1).eval()
    grey = pixels(32, 1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


def test_memory_formats():
    convolution = make_encoder("resnet18", 32, 3).model.layer1[0].conv1.weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)


def test_weights_of_the_backbone_alone_are_saved():
    state = make_encoder("resnet18", 32, 3).state_dict()
    assert {key.split(".")[0] for key in state} == {"model"}
    assert not any(key.startswith("model.fc") for key in state)


# ---- the paper's CNN


def test_the_papers_cnn_is_as_it_was():
    """The constructor as it was when it knew one size, to the bit."""

    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            layers = []
            for before, after in ((3, 32), (32, 64), (64, 128)):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
            self.convolutions = nn.Sequential(*layers)
            self.embed = nn.Linear(128 * 12 * 12, 512)
            self.to(memory_format=torch.channels_last)

        def forward(self, images):
            return torch.relu(self.embed(self.convolutions(1 - images.float() / 255).flatten(1)))

    torch.manual_seed(3)
    before = Before()
    torch.manual_seed(3)
    encoder = make_encoder("cnn", 100, 3)
    assert isinstance(encoder, Encoder)
    assert list(encoder.state_dict()) == list(before.state_dict())
    assert all(torch.equal(value, before.state_dict()[key]) for key, value in encoder.state_dict().items())
    images = pixels(100).contiguous(memory_format=torch.channels_last)
    assert torch.equal(encoder(images), before(images))


@pytest.mark.parametrize(("size", "channels"), [(8, 3), (28, 1), (65, 3)])
def test_the_papers_cnn_at_any_size(size, channels):
    encoder = make_encoder("cnn", size, channels)
    assert encoder(pixels(size, channels)).shape == (2, 512)


def test_the_size_that_models_are_made_for():
    assert default_size("cnn") == 100
    assert default_size("resnet18") == 224
    assert default_size("inception_v3") == 299


# ---- weights


def test_weights_from_files(tmp_path):
    source = models.resnet18(num_classes=7)  # another number of classes does not matter
    torch.save(source.state_dict(), tmp_path / "bare.pth")
    torch.save({"model": source.state_dict(), "epoch": 3}, tmp_path / "nested.pth")
    save_file(source.state_dict(), tmp_path / "x.safetensors")
    for name in ("bare.pth", "nested.pth", "x.safetensors"):
        encoder = make_encoder("resnet18", 32, 3, str(tmp_path / name))
        for key, value in encoder.model.state_dict().items():
            assert torch.equal(value, source.state_dict()[key]), key


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_weights_of_a_run(tmp_path, name):
    source = make_encoder(name, 32, 3)
    state = {f"encoder.{key}": value.contiguous() for key, value in source.state_dict().items()}
    save_file({**state, "head.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    encoder = make_encoder(name, 32, 3, str(tmp_path / "model.safetensors"))
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in encoder.state_dict().items())


def test_default_weights_that_are_there_already(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    source = models.resnet18()
    file = models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(source.state_dict(), tmp_path / "hub" / "checkpoints" / file)
    encoder = make_encoder("resnet18", 32, 3, "default")
    assert torch.equal(encoder.model.conv1.weight, source.conv1.weight)


def test_default_weights_without_a_network(tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setattr("torch.hub.urlopen", offline)
    with pytest.raises(
        UserError, match=r"--weights default: https://.*resnet18.* cannot be downloaded \(no route"
    ):
        make_encoder("resnet18", 32, 3, "default")


# ---- what cannot be used


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet19", r"--backbone resnet19: no such model; did you mean resnet18, "),
        ("vit", r"did you mean .*vit"),
        ("CNN", r"no such model"),
        ("xxxxxxxxxxxx", r"no such model; see torchvision.models"),
        ("fasterrcnn_resnet50_fpn", r"no such model"),  # no classifier
    ],
)
def test_unknown_names_have_neighbours(name, says):
    with pytest.raises(UserError, match=says):
        make_encoder(name, 32, 3)


@pytest.mark.parametrize(
    ("name", "size", "weights", "says"),
    [
        ("alexnet", 16, "none", r"--backbone alexnet does not take images of --image-size 16 \("),
        ("vit_b_16", 40, "none", r"--backbone vit_b_16 does not take images of --image-size 40 \("),
        ("vit_b_16", 32, "default", r"does not take images of --image-size 32 \(.*expected value 224"),
        ("maxvit_t", 32, "none", r"does not take images of --image-size 32 \("),
        ("cnn", 7, "none", r"--image-size 7: --backbone cnn needs at least 8"),
        ("cnn", 100, "default", r"--weights default: there are none for --backbone cnn"),
        (
            "resnet18",
            32,
            "nowhere.pth",
            r"--weights nowhere.pth: no such file; expected none, default or a file",
        ),
    ],
)
def test_what_does_not_go_together(name, size, weights, says):
    with pytest.raises(UserError, match=says):
        make_encoder(name, size, 3, weights)


def test_weights_that_do_not_fit(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "junk.pth").write_bytes(b"junk")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    state = models.resnet18().state_dict()
    torch.save({**state, "conv1.weight": torch.zeros(64, 1, 7, 7)}, tmp_path / "grey.pth")
    for file, says in (
        ("list.pth", "no state dict"),
        ("junk.pth", "not a file of weights"),
        ("junk.safetensors", "not a file of weights"),
        ("grey.pth", r"conv1.weight is \[64, 1, 7, 7\] there and \[64, 3, 7, 7\] here"),
    ):
        with pytest.raises(UserError, match=f"--weights .*{file}: .*{says}"):
            make_encoder("resnet18", 32, 3, str(tmp_path / file))
    torch.save(state, tmp_path / "18.pth")
    with pytest.raises(UserError, match=r"18.pth: they do not fit: layer1.2.conv1.weight is missing"):
        make_encoder("resnet34", 32, 3, str(tmp_path / "18.pth"))


# ---- timm


def test_timm_must_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"--backbone timm:NAME needs timm: pip install timm"):
        make_encoder("timm:resnet18", 32, 3)


@pytest.mark.parametrize(
    ("name", "width"), [("resnet18", 512), ("vit_tiny_patch16_224", 192), ("test_convnext", None)]
)
def test_models_of_timm(name, width):
    pytest.importorskip("timm")
    encoder = make_encoder(f"timm:{name}", 32, 3)
    assert isinstance(encoder, Backbone)
    assert encoder(pixels(32)).shape == (2, width or encoder.width)
    with pytest.raises(UserError, match=r"--backbone resnet1: no such model; did you mean resnet1"):
        make_encoder("timm:resnet1", 32, 3)
