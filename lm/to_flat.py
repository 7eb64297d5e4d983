"""The way back: an ordinary model of `transformers`, for tools that know only a linear output layer."""

from __future__ import annotations

import copy
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lm.compress import hidden_states, require_plain_logits
from lm.model import IGNORED, CompressedLM
from sqrtvocab import Head
from sqrtvocab.heads.base import block_rows


class Flattened(NamedTuple):
    """What `to_flat` returns; the losses are of the text that it kept from the fit."""

    model: PreTrainedModel
    loss_before: float
    """Of the model given, in nats a token."""
    loss_after: float
    """Of the ordinary one."""


@torch.no_grad()
def to_flat(model: CompressedLM, calibration: Tensor, steps: int = 50) -> Flattened:
    """An ordinary causal LM (`GPT2LMHeadModel`, `LlamaForCausalLM`, ...), as near to `model` as a linear
    output layer can be. The backbone is shared, not copied.

    The layer minimises the mean Kullback-Leibler divergence from the head's P(token) at the hidden states of
    the calibration text: a convex problem, begun at the least squares of the log-probabilities. A flat head
    is given back as it is. In a head with groups the log-odds of tokens of two groups are no linear function
    of the hidden state, so something is lost, and reported. Where the ordinary model has no bias, as is
    usual, the fit has none either.

    Args:
        calibration: [B, L] token ids of typical text, many times as many tokens as the hidden state is wide:
            fewer are learnt by heart. A quarter of the rows is kept for the losses.
        steps: of L-BFGS, each of which computes the logits of all calibration tokens, some rows at a time.

    Raises:
        ValueError: too little text; or a kind of model that does more to its logits than a linear layer.
    """
    backbone = model.backbone
    rows, kept = len(calibration), max(1, len(calibration) // 4)
    width = int(model.config.hidden_size)
    if calibration.dim() != 2 or rows < 2 or (rows - kept) * calibration.shape[1] < 2 * width:
        raise ValueError(
            f"calibration of shape {list(calibration.shape)} is too little: expected [B, L] with at least 2 "
            f"rows, and, less a quarter of them, many times {width} tokens"
        )
    config = copy.deepcopy(backbone.config)
    config.tie_word_embeddings = False  # the rows of the new layer are its own
    with torch.device("meta"):  # its weights come from elsewhere
        flat = cast(PreTrainedModel, AutoModelForCausalLM.from_config(config))
    setattr(flat, flat.base_model_prefix, backbone)
    meta = flat.get_output_embeddings()
    if not isinstance(meta, nn.Linear) or meta.in_features != width:
        raise ValueError(f"{type(flat).__name__} has no linear output layer on its hidden state")
    layer = nn.Linear(width, meta.out_features, meta.bias is not None, model.head_device, model.dtype)
    flat.set_output_embeddings(layer)
    require_plain_logits(flat, backbone, layer, calibration[:1, :8].to(model.head_device))

    calibration = calibration.to(model.head_device)
    weight, bias = _fit(model, hidden_states(backbone, calibration[kept:]), layer.bias is not None, steps)
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)
    flat.generation_config = copy.deepcopy(model.generation_config)
    flat.train(model.training)

    hidden = hidden_states(backbone, calibration[:kept])  # [N, d]
    target = F.pad(calibration[:kept, 1:], (0, 1), value=IGNORED).flatten()  # [N]
    before = model.head(model.adapted(hidden), target, ignore_index=IGNORED).loss
    blocks = zip(hidden.split(block_rows(len(weight))), target.split(block_rows(len(weight))), strict=True)
    after = sum(F.cross_entropy(layer(h).float(), t, reduction="sum") for h, t in blocks)
    return Flattened(flat, float(before), float(after / (target != IGNORED).sum()))


def _fit(model: CompressedLM, hidden: Tensor, with_bias: bool, steps: int) -> tuple[Tensor, Tensor | None]:
    """The layer, W [V, d] and b [V], nearest to the head at `hidden` [N, d]."""
    head: Head = model.head
    features = F.pad(hidden.float(), (0, 1), value=1.0) if with_bias else hidden.float()  # [N, f]
    # In coordinates in which the features are uncorrelated, steps go straight down. Directions in which they
    # do not vary (a layer norm leaves one) say nothing.
    values, vectors = torch.linalg.eigh(features.double().T @ features.double() / len(features))
    seen = values > 1e-10 * values[-1]
    whiten = (vectors[:, seen] / values[seen].sqrt()).float()  # [f, r]
    blocks = hidden.split(block_rows(head.num_classes))  # their logits are V wide

    start = torch.zeros(head.num_classes, whiten.shape[1], device=hidden.device)  # [V, r]
    coordinates = []
    for block, rows in zip(blocks, features.split(len(blocks[0])), strict=True):
        coordinates.append(rows @ whiten)  # [R, r]
        log_probs = head.log_prob(model.adapted(block)).float()  # [R, V]
        # A constant a row is free; without it a flat head's are linear.
        start += (log_probs - log_probs.mean(-1, keepdim=True)).T @ coordinates[-1]
    table = (start / len(features)).requires_grad_()  # [V, r]
    optimizer = torch.optim.LBFGS(
        [table], max_iter=steps, history_size=5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        total = 0.0
        for block, rows in zip(blocks, coordinates, strict=True):
            wanted = head.log_prob(model.adapted(block)).float().exp()  # [R, V]
            with torch.enable_grad():  # the caller has switched it off
                loss = F.cross_entropy(rows @ table.T, wanted, reduction="sum") / len(features)
                loss.backward()
            total += float(loss.detach())
        return total

    optimizer.step(closure)
    layer = table.detach() @ whiten.T  # [V, f]
    return (layer[:, :-1], layer[:, -1]) if with_bias else (layer, None)
