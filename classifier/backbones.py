"""Image encoders by name: the paper's CNN, a faster one, or any classification model of torchvision or timm
without its last layer.

An encoder takes uint8 images [N, C, size, size] as they are stored and returns embeddings [N, width]; what
its model wants in between (normalisation, three channels, memory format) is its own affair.
"""

from __future__ import annotations

import difflib
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from classifier.cnn import Encoder
from classifier.swift import FILTERS, SMALLEST, Swift
from sqrtvocab.errors import UserError

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_OURS = ("cnn", *FILTERS)
_FROM_RUN = "encoder."  # before the names of weights in a checkpoint of train_classifier


class Backbone(nn.Module):
    """A model of a library, whose last layer is gone, behind the interface of `Encoder`."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, width: int, mean: Any, std: Any) -> None:
        super().__init__()
        self.model = model
        self.width = width
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        if sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 1:  # no transformer
            self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [N, 1 or 3, size, size] -> [N, width]."""
        x = (images.float() - self.mean) / self.std  # [N, 3, size, size]; grey becomes three alike
        if self.training and len(x) == 1:  # a batch norm refuses to learn from one value
            return self.model(x.expand(2, -1, -1, -1))[:1]
        return self.model(x)


def make_encoder(name: str, size: int, channels: int, weights: str = "none") -> Encoder | Swift | Backbone:
    """A new encoder.

    Args:
        name: "cnn", "swift", "swift-wide", a name of `torchvision.models`, or "timm:NAME".
        size, channels: of the images.
        weights: "none" for random ones, "default" for the library's best (downloaded), or a file of the same
            model's.

    Raises:
        UserError: no such model, none for images of this size, or weights that cannot be had or do not fit.
    """
    if name == "cnn":
        encoder: Encoder | Swift | Backbone = _paper(size, channels, weights)
    elif name in FILTERS:
        encoder = _swift(name, size, channels, weights)
    elif name.startswith("timm:"):
        encoder = _timm(name.removeprefix("timm:"), size, weights)
    else:
        encoder = _torchvision(name, size, weights)
    if weights not in ("none", "default"):
        _load(encoder, Path(weights))
    return encoder


def default_size(name: str) -> int:
    """The side of the images that a model was made for.

    Raises UserError if there is no such model.
    """
    if name in _OURS:
        return 100
    if name.startswith("timm:"):
        timm, model = _import_timm(), name.removeprefix("timm:")
        _require_name(model, timm.list_models(), "timm.list_models()")
        return timm.get_pretrained_cfg(model).input_size[-1]
    return _torchvision_preset(name).crop_size[0]


def _paper(size: int, channels: int, weights: str) -> Encoder:
    if weights == "default":
        raise UserError("--weights default: there are none for --backbone cnn; use none or a file")
    if size < 8:
        raise UserError(f"--image-size {size}: --backbone cnn needs at least 8")
    return Encoder(size, channels)


def _swift(name: str, size: int, channels: int, weights: str) -> Swift:
    if weights == "default":
        raise UserError(f"--weights default: there are none for --backbone {name}; use none or a file")
    if size < SMALLEST:
        raise UserError(f"--image-size {size}: --backbone {name} needs at least {SMALLEST}")
    return Swift(size, channels, FILTERS[name])


# ---- torchvision


def _torchvision(name: str, size: int, weights: str) -> Backbone:
    from torchvision import models

    preset = _torchvision_preset(name)
    options: dict[str, Any] = {}
    if name.startswith("vit_"):  # these two are made for one size
        options["image_size"] = size
    if name.startswith("maxvit"):
        options["input_size"] = (size, size)
    if name in ("googlenet", "inception_v3") and weights != "default":
        options["init_weights"] = True  # or they warn that this is about to change
    try:
        model = models.get_model(name, weights="DEFAULT" if weights == "default" else None, **options)
    except (urllib.error.URLError, OSError) as error:
        url = models.get_model_weights(name).DEFAULT.url
        raise UserError(
            f"--weights default: {url} cannot be downloaded ({getattr(error, 'reason', error)}); get the "
            "file elsewhere and give it with --weights FILE, or use --weights none"
        ) from error
    except (ValueError, RuntimeError, AssertionError) as error:
        raise _wrong_size(name, size, error) from error
    if getattr(model, "aux_logits", False):  # GoogLeNet and Inception score classes half way up, too
        model.aux_logits = False
        for part in {"aux1", "aux2", "AuxLogits"} & {child for child, _ in model.named_children()}:
            setattr(model, part, None)
    _remove_last_layer(model)
    return _checked(name, model, size, preset.mean, preset.std)


def _torchvision_preset(name: str) -> Any:
    """The preprocessing of a model's own weights: size, mean, standard deviation."""
    from torchvision import models

    names = models.list_models(module=models)
    _require_name(name, [*names, *_OURS], "torchvision.models")
    return models.get_model_weights(name).DEFAULT.transforms()


def _remove_last_layer(model: nn.Module) -> None:
    """Put an identity in place of the layer that scores the classes: the last linear one or, in SqueezeNet,
    the last convolution."""
    layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    parent, _, child = layers[-1].rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())


# ---- timm


def _timm(name: str, size: int, weights: str) -> Backbone:
    timm = _import_timm()
    _require_name(name, timm.list_models(), "timm.list_models()")
    options: dict[str, Any] = {"num_classes": 0, "pretrained": weights == "default"}
    try:
        try:
            model = timm.create_model(name, img_size=size, **options)
        except TypeError:  # convolutions take any size, and so no such argument
            model = timm.create_model(name, **options)
    except (ValueError, RuntimeError, AssertionError) as error:
        if weights == "default":
            raise _no_timm_weights(name, error) from error
        raise _wrong_size(name, size, error) from error
    except Exception as error:  # the hub's own, the HTTP library's, and the system's
        raise _no_timm_weights(name, error) from error
    config = model.pretrained_cfg
    return _checked(name, model, size, config.get("mean", _IMAGENET[0]), config.get("std", _IMAGENET[1]))


def _import_timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise UserError("--backbone timm:NAME needs timm: pip install timm") from error
    return timm


def _no_timm_weights(name: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(
        f"--weights default: there are none for timm:{name} ({reason}); use --weights none or a file"
    )


# ---- what can be wrong


def _checked(name: str, model: nn.Module, size: int, mean: Any, std: Any) -> Backbone:
    """The backbone, after it has seen a first image: which tells its width, and whether it takes the size."""
    was_training = model.training
    try:
        with torch.no_grad():
            embedding = model.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise _wrong_size(name, size, error) from error
    model.train(was_training)
    return Backbone(model, embedding.shape[1], mean, std)


def _wrong_size(name: str, size: int, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(f"--backbone {name} does not take images of --image-size {size} ({reason})")


def _require_name(name: str, names: list[str], where: str) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"see {where}"
    raise UserError(f"--backbone {name}: no such model; {hint}")


def _load(encoder: nn.Module, path: Path) -> None:
    """Take the weights in a file: of the encoder of a run, or a state dict of the library's model with or
    without its last layer.

    Raises UserError if it cannot be read or does not fit.
    """
    state = _read_weights(path)
    if any(key.startswith(_FROM_RUN) for key in state):
        state = {k.removeprefix(_FROM_RUN): v for k, v in state.items() if k.startswith(_FROM_RUN)}
        target = encoder
    else:
        target = encoder.model if isinstance(encoder, Backbone) else encoder
    wanted = target.state_dict()
    for key, value in wanted.items():
        if key not in state:
            raise UserError(f"--weights {path}: they do not fit: {key} is missing")
        if state[key].shape != value.shape:
            raise UserError(
                f"--weights {path}: they do not fit: {key} is {list(state[key].shape)} there and "
                f"{list(value.shape)} here"
            )
    target.load_state_dict({key: state[key] for key in wanted})


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise UserError(f"--weights {path}: no such file; expected none, default or a file")
    try:
        state = (
            load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        )
    except (SafetensorError, OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"--weights {path}: not a file of weights ({' '.join(str(error).split())[:100]})"
        ) from error
    except Exception as error:  # pickle.UnpicklingError among others
        raise UserError(f"--weights {path}: not a file of weights ({type(error).__name__})") from error
    for key in ("model", "state_dict"):  # as training scripts save them
        if isinstance(state, dict) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"--weights {path}: it holds no state dict (names and tensors)")
    return state
