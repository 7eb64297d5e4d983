"""Groups of similar class vectors, of which decoding opens the most promising, and what that proves."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from sqrtvocab.heads.base import wide
from sqrtvocab.partition import Partition, integer


class Probes:
    """Balanced clusters of unit vectors, each within an angle of its centre.

    Keeps a copy of the vectors in the order of the groups, at least float32: to gather and to widen them for
    each call would take most of the time.

    Args:
        vectors: [V, d] of length 1.
        known: [V] which of them mean anything; the others fill places and are never opened for.
        num_groups: √V by default.
    """

    def __init__(self, vectors: Tensor, known: Tensor, num_groups: int | None = None) -> None:
        points = wide(vectors)
        counts = known.cpu().double() if bool(known.any()) else None
        self.partition = Partition.by_clusters(points, num_groups, counts).to(vectors.device)
        groups = torch.arange(self.partition.num_groups, device=vectors.device)
        self.members = self.partition.slots(groups)  # [G, S] padding repeats the first member
        self.sizes = self.partition.sizes(vectors.device)  # [G]
        self.edges = [0, *self.sizes.cumsum(0).tolist()]  # where each group begins in what follows
        self.order = self.members[~self.partition.padding(device=vectors.device)]  # [V] group by group
        self.points = points[self.order]  # [V, d]
        real = ~self.partition.padding(device=vectors.device) & known[self.members]  # [G, S]
        centres, widths = [], []
        for members, mask in zip(self.members, real, strict=True):
            cluster = points[members[mask]]  # [K, d]
            centre = F.normalize(cluster.sum(0), dim=0)
            centres.append(centre)
            # A group without known classes is as far away as can be.
            widths.append(_angle(cluster @ centre).max() if len(cluster) else points.new_tensor(-math.inf))
        self.centres = torch.stack(centres)  # [G, d]
        self.widths = torch.stack(widths)  # [G] the largest angle between a centre and a vector of its group

    def topk(
        self, rows: Tensor, k: int, probe: int, penalties: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The k best of scale · (rows · vectors) + penalties in the ``probe`` groups of nearest centres.

        Args:
            rows: [N, d] of length 1.
            penalties: [V].

        Returns:
            Their logits [N, k] and classes [N, k], best first; the log-sum-exp of all that was looked at [N];
            and [N] where the angles prove that no other class is better.

        Raises:
            ValueError: ``probe`` outside [1, G], or k more than the smallest ``probe`` groups hold.
        """
        groups = self.partition.num_groups
        if not 1 <= integer("probe", probe) <= groups:
            raise ValueError(f"probe must be between 1 and the number of groups, {groups}; got {probe}")
        held = probe * int(self.sizes.min())
        if not 1 <= integer("k", k) <= held:
            raise ValueError(f"k must be between 1 and {held}, what {probe} groups hold; got {k}")
        rows, penalties = rows.to(self.points.dtype), penalties.to(self.points.dtype)
        bounds = self._bounds(rows, penalties, scale)  # [N, G] no class of the group has more
        near = rows @ self.centres.T  # [N, G]
        opened = near.masked_fill(self.widths == -math.inf, -2.0).topk(probe).indices  # [N, P]
        best, classes, total = self._look_into(opened, rows, k, penalties, scale)
        unopened = bounds.scatter(1, opened, -math.inf).max(-1).values  # [N]
        return best, classes, total, unopened <= best[:, -1]

    def _bounds(self, rows: Tensor, penalties: Tensor, scale: float) -> Tensor:
        """By the triangle's inequality of angles, with a little room for rounding."""
        nearest = (_angle(rows @ self.centres.T) - self.widths - 1e-3).clamp(min=0.0)  # [N, G]
        return scale * nearest.clamp(max=math.pi).cos() + penalties[self.members].max(1).values

    def _look_into(
        self, opened: Tensor, rows: Tensor, k: int, penalties: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Group by group, with all the rows that open it: every vector is read once."""
        count, probe = opened.shape
        groups, pairs = opened.flatten().sort(stable=True)  # [N·P] and which (row, place) opens each
        asking = scale * rows[pairs // probe]  # [N·P, d]
        penalties = penalties[self.order]
        table = asking.new_full((len(pairs), self.members.shape[1]), -math.inf)  # [N·P, S]
        ends = torch.bincount(groups, minlength=len(self.members)).cumsum(0).tolist()
        for (first, last), (start, stop) in zip(pairwise(self.edges), pairwise([0, *ends]), strict=True):
            if start < stop:
                points, logits = self.points[first:last], table[start:stop, : last - first]
                torch.addmm(penalties[first:last], asking[start:stop], points.T, out=logits)
        best, member = table.topk(min(k, table.shape[1]))  # [N·P, <= k] of each group that a row opens
        places = pairs.argsort()  # back to the order of the rows
        classes = self.members[groups.unsqueeze(1), member][places].view(count, -1)
        best, index = best[places].view(count, -1).topk(k)
        total = table.logsumexp(1)[places].view(count, -1).logsumexp(1)  # [N]
        return best, classes.gather(1, index), total


def _angle(cosines: Tensor) -> Tensor:
    return cosines.clamp(-1.0, 1.0).acos()
