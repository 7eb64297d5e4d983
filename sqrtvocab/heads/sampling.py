"""Draws from what temperature, top-p and min-p leave of a distribution, looking no further than they must."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sqrtvocab.partition import host_sees

if TYPE_CHECKING:
    from sqrtvocab.heads.base import Head

# How many classes to look at before a row is drawn from its dense distribution. Not more: in a peaked row the
# hundredth best class lies below many groups, all of which would have to be opened to be sure of it.
LOOKS = (8, 32)
ROUNDS = 4  # proposals before a row is drawn from its dense distribution


def draw(logits: Tensor, generator: torch.Generator | None, temperature: float = 1.0) -> Tensor:
    """One index per row of unnormalised log-probabilities [N, C] -> [N]."""
    if temperature != 1:  # the maximum goes first: a tiny temperature must not overflow
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    probs = logits.softmax(-1)
    if host_sees(probs):
        return torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    # What multinomial does, the same numbers drawn, without its kernels that look for bad probabilities.
    return (probs / torch.empty_like(probs).exponential_(generator=generator)).argmax(-1)


def draw_cooled(head: Head, rows: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """[N, d] -> [N] from softmax(log_prob / temperature).

    Below temperature 1 by rejection: a class drawn at temperature 1 is accepted with probability
    (p / max p)^(1/temperature − 1), which turns p into p^(1/temperature). The rows still without a class
    after a few rounds, and all rows above temperature 1, are drawn from their dense distribution: a rejected
    proposal tells nothing about the next draw, so the result is exact.
    """
    drawn = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    left = torch.arange(rows.shape[0], device=rows.device)
    if temperature < 1 and head.sparse_topk and host_sees(rows):
        best = head._topk(rows, 1)[0].squeeze(1)  # [N]
        for _ in range(ROUNDS):
            proposal = head._sample(rows[left], generator)  # [R]
            log_prob = -sum(head._nll(rows[left], proposal, 0.0))
            accept = ((log_prob - best[left]) * (1 / temperature - 1)).exp()  # [R]
            accepted = torch.rand(len(left), generator=generator, device=rows.device) < accept
            drawn[left[accepted]] = proposal[accepted]
            left = left[~accepted]
    for block in head._blocks(left) if left.numel() else ():
        drawn[block] = draw(head._log_prob(rows[block]), generator, temperature)
    return drawn


def draw_among_best(
    head: Head,
    rows: Tensor,
    temperature: float,
    top_k: int,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """[N, d] -> [N] from softmax(log_prob / temperature) of the ``top_k`` most probable classes, less those
    that top-p and min-p leave out.

    Up to temperature 1 by rejection: a class drawn from all, which is cheap, is accepted if fewer than
    ``top_k`` classes are more probable, and with the probability that `draw_cooled` tells. To prove that of a
    class which is likely takes a few groups; to find all ``top_k`` takes many. The rows still without a class
    after a few rounds, and whatever needs the probabilities of all ``top_k``, are drawn from these.
    """
    drawn = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    left = torch.arange(len(rows), device=rows.device)
    is_plain = top_p is None and min_p is None and temperature <= 1 and 1 < top_k < head.num_classes
    best = None
    for _ in range(ROUNDS if is_plain else 0):
        if not len(left) or (proposed := head._propose(rows[left], top_k, generator)) is None:
            break
        proposal, log_prob, accepted = proposed
        if temperature < 1:
            best = head._topk(rows, 1)[0].squeeze(1) if best is None else best  # [N]
            accept = ((log_prob - best[left]) * (1 / temperature - 1)).exp()  # [R]
            accepted &= torch.rand(len(left), generator=generator, device=rows.device) < accept
        drawn[left[accepted]] = proposal[accepted]
        left = left[~accepted]
    if len(left):
        drawn[left] = _draw_from_all_best(head, rows[left], temperature, top_k, top_p, min_p, generator)
    return drawn


def _draw_from_all_best(
    head: Head,
    rows: Tensor,
    temperature: float,
    top_k: int,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    log_probs, classes = head._topk(rows, top_k)  # [N, k]
    logits = (log_probs - log_probs[:, :1]) / temperature  # a tiny temperature must not overflow
    choice = draw(keep(logits, top_p, min_p), generator)  # [N]
    return classes.gather(1, choice.unsqueeze(1)).squeeze(1)


def draw_nucleus(
    head: Head,
    rows: Tensor,
    temperature: float,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """[N, d] -> [N] from softmax(log_prob / temperature), less the classes that top-p and min-p leave out."""
    drawn = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    for ready, log_probs, classes in _best_classes(head, rows, temperature, top_p, min_p):
        logits = (log_probs - log_probs[:, :1]) / temperature
        choice = draw(keep(logits, top_p, min_p), generator)  # [R]
        drawn[ready] = classes.gather(1, choice.unsqueeze(1)).squeeze(1)
    return drawn


def keep(logits: Tensor, top_p: float | None, min_p: float | None) -> Tensor:
    """Sorted logits [N, k], best first: −inf from where top-p and min-p leave the classes out.

    As in `transformers`: top-p keeps the fewest classes whose probabilities add up to at least top_p, min-p
    those at least min_p times as probable as the best.
    """
    if top_p is not None:
        before = logits.softmax(-1).cumsum(-1).roll(1, -1)  # the probability of all better classes
        before[:, 0] = -1.0  # the best one always stays
        logits = logits.masked_fill(before >= top_p, -math.inf)
    if min_p is not None:
        logits = logits.masked_fill(logits < logits[:, :1] + _log(min_p), -math.inf)
    return logits


def _best_classes(
    head: Head, rows: Tensor, temperature: float, top_p: float | None, min_p: float | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(rows [R], log-probabilities [R, k], classes [R, k]), best first, until every row was there.

    A row comes when its k best hold everything that top-p and min-p keep, however the rest of the probability
    is divided among the other classes.
    """
    left = torch.arange(rows.shape[0], device=rows.device)
    looks = LOOKS if head.sparse_topk and host_sees(rows) else ()
    for k in (k for k in looks if k <= head.num_classes // 8):
        log_probs, classes = head._topk(rows[left], k)  # [R, k]
        scores = _precise(log_probs - log_probs[:, :1]) / temperature
        by_min_p = (scores >= _log(min_p)).sum(-1)  # [R] how many min-p keeps; k is k or more
        fewest, most = torch.full_like(by_min_p, k), torch.full_like(by_min_p, k)
        if top_p is not None:
            mass = scores.exp().cumsum(-1)  # [R, k]
            total = mass[:, -1] + _rest(log_probs, scores, temperature, head.num_classes - k)  # [R] at most
            fewest = (mass < top_p * mass[:, -1:]).sum(-1) + 1
            most = (mass < top_p * total.unsqueeze(1)).sum(-1) + 1
        is_ready = (by_min_p < k) & (by_min_p <= fewest)
        if top_p is not None:
            is_ready |= (fewest == most) & (most <= k)
        yield left[is_ready], log_probs[is_ready], classes[is_ready]
        left = left[~is_ready]
    for block in head._blocks(left) if left.numel() else ():
        yield block, *head._log_prob(rows[block]).sort(dim=-1, descending=True)


def _rest(log_probs: Tensor, scores: Tensor, temperature: float, others: int) -> Tensor:
    """At most so much is the sum of exp(score) over the classes beyond the k best, [R]."""
    last = scores[:, -1].exp()
    if temperature > 1:
        return others * last
    # Σ p^(1/T) ≤ (max p)^(1/T − 1) · Σ p
    missing = (1 - _precise(log_probs).exp().sum(-1)).clamp(min=0.0)
    return last * missing / _precise(log_probs[:, -1]).exp().clamp(min=1e-30)


def _log(min_p: float | None) -> float:
    return -math.inf if not min_p else math.log(min_p)


def _precise(values: Tensor) -> Tensor:
    return values if values.device.type == "mps" else values.double()  # mps has no float64
