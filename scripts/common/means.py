"""Means over seeds, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half the width of its 95 % interval (Student t); None for a single value."""

    value: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of at least one value."""
        n, value = len(values), math.fsum(values) / len(values)
        if n == 1:
            return cls(value, None, 1)
        from scipy.special import stdtrit  # a dependency of scikit-learn

        deviation = math.sqrt(math.fsum((x - value) ** 2 for x in values) / (n - 1))
        return cls(value, float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n), n)

    def show(self, digits: int, sign: str = "") -> str:
        """As in `3.801 ± 0.012`."""
        text = f"{self.value:{sign}.{digits}f}".replace("-", "−")
        return text if self.half is None else f"{text} ± {self.half:.{digits}f}"


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Mean | None:
    """The mean difference of two contenders over the seeds that both have; None if there are none."""
    both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return Mean.of(both) if both else None
