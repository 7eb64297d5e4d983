"""Which pictures are kept for validation and test where the data does not say: by class, and for good.

A picture's place follows from its name and its class, not from the order in which a disk lists the files, nor
from the seed of a run: runs with several seeds are scored on the same pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from classifier.images.protocol import IntArray


def held_out(
    keys: Sequence[str], labels: IntArray, classes: Sequence[str], valid: float, test: float
) -> IntArray:
    """[N] 0 for training, 1 for validation, 2 for test.

    Of a class of n pictures n·valid and n·test are held out, rounded up or down at random (but always alike
    for that class), so that classes of three pictures have their share in validation too. One at least stays
    in training.

    Args:
        keys: [N] what tells a picture from all others.
        labels: [N] its class.
        classes: [V] names.
        valid, test: the shares, each at least 0 and together less than 1.
    """
    order = np.lexsort((_uniform("picture", keys), labels))  # by class, and within it by hash
    sizes = np.bincount(labels, minlength=len(classes))  # [V]
    for_validation = np.floor(sizes * valid + _uniform("validation", classes)).astype(np.int64) * (valid > 0)
    for_test = np.floor(sizes * test + _uniform("test", classes)).astype(np.int64) * (test > 0)
    spare = np.maximum(sizes - 1, 0)
    for_validation = np.minimum(for_validation, spare)
    for_test = np.minimum(for_test, spare - for_validation)
    of_class = labels[order]
    place = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[of_class]  # [N] 0, 1, 2, ... within a class
    result = np.zeros(len(order), np.int64)
    is_validation = place < for_validation[of_class]
    is_test = ~is_validation & (place < (for_validation + for_test)[of_class])
    result[order] = is_validation + 2 * is_test
    return result


def _uniform(purpose: str, names: Sequence[str]) -> np.ndarray:
    """[N] a number in [0, 1) for each name, the same on every machine."""
    key = purpose.encode()
    hashes = b"".join(
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8, key=key).digest()
        for name in names
    )
    return (np.frombuffer(hashes, "<u8") >> np.uint64(11)) / 2.0**53
