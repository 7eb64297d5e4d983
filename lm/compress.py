"""Give a causal LM that exists another head, starting as near to what it was as the head allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from lm.model import CompressedLM, CompressedLMConfig, token_order
from sqrtvocab import FlatHead, GroupedLinearHead


@torch.no_grad()
def compress_vocab(
    model: PreTrainedModel,
    head: str = "grouped-linear",
    *,
    num_groups: int | None = None,
    counts: Tensor | Sequence[float] | None = None,
    calibration: Tensor | None = None,
    **head_options: Any,
) -> CompressedLM:
    """Replace the output layer of a causal LM by one of our heads. The backbone is shared, not copied.

    `flat` computes what the model did. `grouped-linear` starts near it: the members of a group take the rows
    of the old layer, so P(member | group) is exact; the group's score, which should be the log of the sum of
    its members' exponentials, is approximated by a linear layer: fitted to `calibration`, or without it
    expanded to first order around a zero hidden state. The other heads start afresh (from the prior, if there
    are `counts`).

    Args:
        model: such as `AutoModelForCausalLM.from_pretrained(...)`.
        num_groups: G; floor(√V) by default.
        counts: [V] how often each token occurs in your data; groups then hold tokens of similar frequency.
        calibration: [B, L] token ids of typical text; a few thousand tokens are enough.
        head_options: options of the head's class.

    Raises:
        ValueError: a model without a linear output layer on its hidden state, or one that does more to its
            logits than that; `num_groups` for a head without groups.
    """
    layer, backbone = model.get_output_embeddings(), cast(PreTrainedModel, model.base_model)
    if not isinstance(layer, nn.Linear) or backbone is model:
        raise ValueError(f"{type(model).__name__} has no linear output layer to replace")
    width = backbone.config.get_text_config().hidden_size
    if layer.in_features != width:
        raise ValueError(
            f"the output layer of {type(model).__name__} takes {layer.in_features} features, not the {width} "
            "of the hidden state, as a head does"
        )
    if num_groups is not None and head in ("flat", "adaptive"):
        raise ValueError(f"num_groups={num_groups}: the {head} head has no groups")
    probe = torch.arange(min(8, layer.out_features), device=layer.weight.device)[None]
    _require_plain_logits(model, backbone, layer, probe)

    order = None if counts is None or head == "flat" else token_order("frequency", counts)
    config = CompressedLMConfig(
        text_config=backbone.config,
        head=head,
        num_groups=num_groups,
        ordered=order is not None,
        head_options=head_options,
    )
    compressed = CompressedLM(config, backbone, order)
    compressed.head.to(device=layer.weight.device, dtype=layer.weight.dtype)
    compressed.generation_config = model.generation_config
    new = compressed.head
    bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(layer.out_features)  # [V]
    if isinstance(new, FlatHead):
        new.weight.copy_(layer.weight)
        if new.bias is not None:
            new.bias.copy_(bias)
    elif isinstance(new, GroupedLinearHead):
        groups = torch.arange(new.partition.num_groups, device=layer.weight.device)
        slots = new.partition.slots(groups, new.width)  # [G, width]
        padding = new.partition.padding(new.width, layer.weight.device)  # [G, width]
        new.weight.copy_(layer.weight[slots].masked_fill(padding.unsqueeze(-1), 0.0))
        new.shift.copy_(bias[slots].masked_fill(padding, 0.0)[:, : new.partition.group_size])
        hidden = None if calibration is None else _hidden_states(backbone, calibration.to(slots.device))
        for parameter, start in zip(new.group.parameters(), group_layer(new, hidden), strict=True):
            parameter.copy_(start)
    elif counts is not None:
        new.init_prior(counts)
    return compressed


def group_layer(head: GroupedLinearHead, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """W [G, d] and b [G] such that W h + b is close to log Σ exp(member scores), up to a constant a row.

    Args:
        hidden: [N, d] hidden states to be close at; None expands around zero.
    """
    centre = (
        torch.zeros(1, head.in_features).to(head.shift) if hidden is None else hidden.mean(0, keepdim=True)
    )
    # First order around the centre: the gradient of a log-sum-exp is the mean of the rows under its softmax.
    logits = head.member_logits(centre, None)[0].float()  # [G, width]
    weight = torch.einsum("gs,gsd->gd", logits.softmax(-1), head.member_weight().float())  # [G, d]
    bias = logits.logsumexp(-1) - weight @ centre[0].float()  # [G]
    return (weight, bias) if hidden is None else _fit(head, hidden, weight, bias)


def _fit(head: GroupedLinearHead, hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """From weight [G, d] and bias [G], minimise the cross entropy to the exact P(group): a convex problem."""
    few = max(1, 2**22 // head.num_classes)  # rows at a time: their logits are V wide
    blocks = [head.member_logits(rows, None).float().logsumexp(-1) for rows in hidden.split(few)]
    wanted, rows = torch.cat(blocks).softmax(-1), hidden.float()  # [N, G], [N, d]
    parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        with torch.enable_grad():  # the caller has switched it off
            optimizer.zero_grad()
            # The small penalty holds the directions that so few tokens do not determine.
            drift = (parameters[0] - weight).square().mean()
            loss = F.cross_entropy(F.linear(rows, *parameters), wanted) + 1e-2 * drift
            loss.backward()
        return loss.item()

    optimizer.step(closure)
    return parameters[0].detach(), parameters[1].detach()


def _hidden_states(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    was_training = backbone.training
    backbone.eval()
    hidden = torch.cat([backbone(input_ids=row[None]).last_hidden_state[0] for row in ids])  # [B·L, d]
    backbone.train(was_training)
    return hidden


def _require_plain_logits(
    model: PreTrainedModel, backbone: PreTrainedModel, layer: nn.Linear, ids: Tensor
) -> None:
    """The layer must be given the hidden state, and what it returns be the logits, however large: those of a
    new model may be too small for a soft cap to show, so it is made to return others."""
    given: list[Tensor] = []
    large = torch.linspace(-1e4, 1e4, layer.out_features, device=layer.weight.device)  # [V]

    def replace_output(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given.append(inputs[0])
        return large.to(output).expand_as(output)

    was_training, hook = model.training, layer.register_forward_hook(replace_output)
    try:
        model.eval()  # dropout would make them differ
        logits = model(input_ids=ids).logits
        hidden = backbone(input_ids=ids).last_hidden_state
    finally:
        hook.remove()
        model.train(was_training)
    same_input = len(given) == 1 and torch.allclose(given[0].float(), hidden.float(), rtol=1e-2, atol=1e-2)
    if not same_input or not torch.allclose(logits.float(), large.expand_as(logits), rtol=1e-2):
        raise ValueError(
            f"{type(model).__name__} does more to its logits than a linear layer (scaling or soft-capping, "
            "say), so its rows would mean something else in a new head"
        )
