"""Keyed integer hashing and shuffling: all randomness of the image set, the same on every machine.

numpy's generators may change their streams between versions; these few lines will not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shapesgen.kernel import compiled

# Mixing uint64 with a plain int turns into float64 in numba: every operand below is a uint64.
uint64 = np.uint64
_GOLDEN = uint64(0x9E3779B97F4A7C15)


@compiled
def mix(x):
    """The finaliser of splitmix64: a bijection of the 64-bit integers that looks random."""
    x = uint64(x) + _GOLDEN
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@compiled
def permute(index, half_bits, key):
    """A keyed bijection of 0 .. 4 ** half_bits - 1: a Feistel network of four rounds."""
    mask = (uint64(1) << half_bits) - uint64(1)
    high, low = index >> half_bits, index & mask
    for turn in range(4):
        high, low = low, high ^ (mix(key + low * _GOLDEN + uint64(turn)) & mask)
    return (high << half_bits) | low


@compiled
def _shuffle(rows, size, seed, stream, out):
    key = mix(mix(seed) + stream)
    half_bits = uint64(1)
    while uint64(1) << (half_bits + half_bits) < size:
        half_bits += uint64(1)
    for i in range(rows.size):
        x = permute(uint64(rows[i]), half_bits, key)
        while x >= size:  # walk the cycle until it is back in range
            x = permute(x, half_bits, key)
        out[i] = x


def shuffled(rows: npt.NDArray[np.int64], size: int, seed: int, stream: int) -> npt.NDArray[np.int64]:
    """What a shuffle of 0 .. size - 1 has at `rows` [N]; any rows of it, without building the whole.

    `stream` tells apart the shuffles of one seed.
    """
    out = np.empty_like(rows)
    _shuffle(rows, uint64(size), uint64(seed), uint64(stream), out)
    return out
