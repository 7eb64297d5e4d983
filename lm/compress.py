"""Give a causal LM that exists another head, starting as near to what it was as the head allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lm.model import CompressedLM, CompressedLMConfig, token_order
from sqrtvocab import Partition
from sqrtvocab.heads import head_class

CENTROIDS = 8


@torch.no_grad()
def compress_vocab(
    model: PreTrainedModel,
    head: str = "grouped-linear",
    *,
    num_groups: int | None = None,
    grouping: str | None = None,
    counts: Tensor | Sequence[float] | None = None,
    calibration: Tensor | None = None,
    **head_options: Any,
) -> CompressedLM:
    """Replace the output layer of a causal LM by one of our heads. The backbone is shared, not copied.

    A head that can use the rows of the old layer starts from them (`Head.init_from_linear`): `flat` computes
    what the model did, `grouped-linear` is near it, nearer with `calibration`. The others start afresh (from
    the prior, if there are `counts`).

    Args:
        model: such as `AutoModelForCausalLM.from_pretrained(...)`.
        num_groups: G; floor(√V) by default.
        grouping: "clusters" puts tokens with similar rows of the old layer into a group, "frequency" those
            that are about as frequent (by `counts`), "index" consecutive ones. By default clusters for a head
            that starts from the rows and is calibrated: the score of a group, the log-sum of its members'
            exponentials, is nearly linear where these are alike. Otherwise frequency, or index without
            `counts`.
        counts: [V] how often each token occurs in your data. Those that never do only fill up clusters.
        calibration: [B, L] token ids of typical text; a few thousand tokens are enough.
        head_options: options of the head's class. With `calibration` a head that can score a group by several
            directions gets 8 of them, `centroids`, which bring it much nearer to the old layer than one.

    Raises:
        ValueError: no head of this name; a model without a linear output layer on its hidden state, or one
            that does more to its logits than that; `num_groups` for a head without groups; a `grouping`
            that does not exist, or frequency without `counts`.
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
    kind = head_class(head)
    if num_groups is not None and not kind.has_groups:
        raise ValueError(f"num_groups={num_groups}: the {head} head has no groups")
    probe = torch.arange(min(8, layer.out_features), device=layer.weight.device)[None]
    require_plain_logits(model, backbone, layer, probe)

    if grouping is None:
        by_rows = kind.has_groups and kind.starts_from_linear and calibration is not None
        grouping = "clusters" if by_rows else "index" if counts is None else "frequency"
    order = None
    if kind.takes("partition") or kind.takes("order"):
        order = _order(grouping, layer.weight, num_groups, counts)
    if calibration is not None and kind.takes("centroids"):
        head_options.setdefault("centroids", CENTROIDS)
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
    hidden = None if calibration is None else hidden_states(backbone, calibration.to(layer.weight.device))
    started = compressed.head.init_from_linear(layer.weight, layer.bias, hidden)
    if not started and counts is not None:
        compressed.head.init_prior(counts)
    return compressed


def _order(
    grouping: str, rows: Tensor, num_groups: int | None, counts: Tensor | Sequence[float] | None
) -> Tensor | None:
    """The order of the tokens whose stretches are groups; None is that of their ids."""
    if grouping == "clusters":
        occurring = None if counts is None else torch.as_tensor(counts) > 0
        return Partition.by_clusters(rows.float().cpu(), num_groups, occurring).order
    if grouping not in ("frequency", "index"):
        raise ValueError(f"grouping must be clusters, frequency or index; got {grouping!r}")
    if counts is None and grouping == "frequency":
        raise ValueError("grouping by frequency needs counts")
    return None if counts is None else token_order(grouping, counts)


def hidden_states(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    """Token ids [B, L] -> [B·L, d], without dropout."""
    was_training = backbone.training
    backbone.eval()
    hidden = torch.cat([backbone(input_ids=row[None]).last_hidden_state[0] for row in ids])  # [B·L, d]
    backbone.train(was_training)
    return hidden


def require_plain_logits(
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
