"""How well a classifier does: overall, by group, by attribute, against the ceiling; `eval_classifier`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classifier.cnn import Classifier
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Head, Partition
from sqrtvocab.heads.two_level import TwoLevelHead
from sqrtvocab.training import Runtime

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """What a classifier made of N images."""

    loss: float  # mean negative log-likelihood of the true class
    target: IntArray  # [N] true classes
    top: IntArray  # [N, k] the most probable classes, best first
    in_group: IntArray  # [N] 1 where the group was right
    in_member: IntArray  # [N] 1 where the class is the most probable one of its group

    @property
    def predicted(self) -> IntArray:
        """[N] the most probable classes."""
        return self.top[:, 0]

    def accuracies(self) -> dict[str, float]:
        """Shares of the images: class right, group right, class right given the group, class among the k best."""
        return {
            "accuracy/overall": float(np.mean(self.predicted == self.target)),
            "accuracy/group": float(np.mean(self.in_group)),
            "accuracy/member_given_group": float(np.mean(self.in_member)),
            f"accuracy/top{self.top.shape[1]}": float(np.mean((self.top == self.target[:, None]).any(1))),
        }

    def attributes(self, space: AttributeSpace) -> dict[str, float]:
        """For each attribute the share of images in which the predicted class has it right."""
        right = space.decode(self.predicted) == space.decode(self.target)  # [N, 8]
        return dict(zip(space.names, right.mean(0).tolist(), strict=True))


@torch.inference_mode()
def evaluate(
    model: Classifier,
    batches: Iterable[tuple[Tensor, Tensor]],
    partition: Partition,
    runtime: Runtime,
    top_k: int = 5,
) -> Evaluation:
    """Score `model` on this rank's share of the images; every rank gets the result for all of them.

    Args:
        batches: uint8 images [N, 3, 100, 100] and classes [N].
        partition: what "group" means for a head that has no groups.
    """
    model.eval()
    top_k = min(top_k, model.head.num_classes)
    loss_sum = torch.zeros((), device=runtime.device)
    rows = []
    for images, target in batches:
        images = images.to(runtime.device, non_blocking=True)
        target = target.to(runtime.device, non_blocking=True)
        with runtime.autocast():
            hidden = model.encoder(images)  # [N, 512]
            loss_sum += model.head(hidden, target, reduction="sum").loss
            top, in_group, in_member = _predictions(model.head, hidden, target, partition, top_k)
        rows.append(torch.cat([target[:, None], in_group[:, None], in_member[:, None], top], 1))  # [N, 3 + k]
    model.train()
    mine = torch.cat(rows) if rows else torch.empty(0, 3 + top_k, dtype=torch.int64)
    table = runtime.gather(mine).numpy()
    mean_loss = float(runtime.sum(loss_sum)) / len(table)
    return Evaluation(mean_loss, table[:, 0], table[:, 3:], table[:, 1], table[:, 2])


def _predictions(
    head: Head, hidden: Tensor, target: Tensor, partition: Partition, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best classes [N, k], whether the group is right [N], whether the best class of the true group is [N]."""
    group, member = partition.split(target)  # [N], [N]
    if isinstance(head, TwoLevelHead):  # `partition` is its own: nothing V-wide is needed
        top = head.topk(hidden, k)[1]  # [N, k]
        group_guess = head.group(hidden).argmax(-1)  # [N]
        member_guess = head._member_logits(hidden, group[:, None])[:, 0].argmax(-1)  # [N]
    else:
        log_probs = head.log_prob(hidden)  # [N, V]
        top = log_probs.topk(k).indices  # [N, k]
        group_guess = partition.split(top[:, 0])[0]  # [N]
        rivals = partition.slots(device=hidden.device)[group]  # [N, S] the classes of the true group
        member_guess = log_probs.gather(1, rivals).argmax(-1)  # [N]; padding repeats member 0 and comes after it
    return top, (group_guess == group).long(), (member_guess == member).long()
