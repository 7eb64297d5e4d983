"""Groups found in vectors: k-means balanced to the exact group sizes, members matched across groups.

scikit-learn and scipy are imported when they are used, so that nobody else needs them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

ITERATIONS = 50  # of k-means; what is left to move after that, the balancing moves anyway
ROUNDS = 15  # of matching


def cluster_order(
    vectors: FloatArray, sizes: IntArray, counts: npt.NDArray[Any] | None = None, seed: int = 0
) -> IntArray:
    """The order [V] in which the classes of each cluster stand together: group after group.

    The directions of the vectors are clustered, for their lengths tell frequencies rather than meaning.
    Then all classes ask for the nearest cluster that has room, which takes the nearest of them, until every
    class has a place.

    Args:
        vectors: [V, d], such as an embedding; finite.
        sizes: [G] how many classes each group holds, V in all.
        counts: [V] how often each class occurs. The classes with a count of 0 have vectors that mean nothing:
            they take no part, and fill the places left. The others weigh log(1 + count). Within a group the
            most frequent class stands first.
        seed: of k-means, which takes its last 32 bits.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    weights = np.ones(len(vectors)) if counts is None else np.log1p(counts.astype(np.float64))
    known = np.flatnonzero(weights) if weights.any() else np.arange(len(vectors))
    lengths = np.linalg.norm(vectors[known], axis=1, keepdims=True)
    points = vectors[known] / np.maximum(lengths, np.finfo(np.float32).tiny)  # [N, d]
    means = KMeans(min(len(sizes), len(known)), n_init=1, max_iter=ITERATIONS, random_state=seed % 2**32)
    with warnings.catch_warnings():  # of vectors that are equal: some clusters stay empty, and are filled
        warnings.simplefilter("ignore", ConvergenceWarning)
        distances = means.fit(points, sample_weight=weights[known] if weights.any() else None).transform(
            points
        )
    group = np.full(len(vectors), -1)
    group[known] = balanced(distances, sizes)
    room = sizes - np.bincount(group[known], minlength=len(sizes))
    group[group < 0] = np.repeat(np.arange(len(sizes)), room)
    return np.lexsort((-weights, group)).astype(np.int64)  # stable: equal weights keep the classes' order


def balanced(distances: FloatArray, sizes: IntArray) -> IntArray:
    """Distances [N, K] -> the cluster of each point [N], with at most ``sizes`` [≥ K] points in each.

    Points that have no room in any of the K clusters go to the further groups, in order.
    """
    count, clusters = distances.shape
    group = np.full(count, -1)
    room = sizes.copy()
    open_clusters, waiting = np.arange(clusters), np.arange(count)
    while len(waiting) and len(open_clusters):  # each round fills a cluster or is the last: at most K rounds
        table = distances[np.ix_(waiting, open_clusters)]
        choice = table.argmin(1)
        near = table[np.arange(len(waiting)), choice]
        ranking = np.lexsort((near, choice))  # by cluster, the nearest first
        wanted = choice[ranking]
        place = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)  # among those who want the same
        accepted = ranking[place < room[open_clusters[wanted]]]
        group[waiting[accepted]] = open_clusters[choice[accepted]]
        room -= np.bincount(group[waiting[accepted]], minlength=len(room))
        waiting = np.delete(waiting, accepted)
        open_clusters = open_clusters[room[open_clusters] > 0]
    group[waiting] = np.repeat(np.arange(len(sizes)), room)[: len(waiting)]
    return group


def matched_order(vectors: FloatArray, order: IntArray, sizes: IntArray) -> IntArray:
    """The order [V] with the classes of each group put such that members of the same number are alike.

    What a member is like is how its vector differs from the mean of its group. Member t of all groups has a
    pattern, the mean of those differences; the classes of each group are assigned to the patterns so that
    they fit them best in sum, and the patterns are taken anew, in turn. No step makes the fit worse, so it
    ends when nothing moves, or after 15 rounds.

    Args:
        vectors: [V, d].
        order: [V], group after group; sets out which classes a group holds, and is where the search begins.
        sizes: [G] of the groups, which differ by at most one.
    """
    from scipy.optimize import linear_sum_assignment

    places = np.split(order, sizes.cumsum()[:-1])  # G arrays of classes, by member
    differences = [vectors[classes] - vectors[classes].mean(0) for classes in places]
    patterns = differences[int(sizes.argmax())].copy()  # [S, d] those of one of the largest groups
    for _ in range(ROUNDS):
        moved = False
        totals, counts = np.zeros_like(patterns), np.zeros(len(patterns))
        for group, difference in enumerate(differences):
            # Squared distances and products rank assignments alike: every class and pattern is used once.
            _, best = linear_sum_assignment(patterns[: len(difference)] @ difference.T, maximize=True)
            moved |= not np.array_equal(best, np.arange(len(best)))
            places[group], differences[group] = places[group][best], difference[best]
            totals[: len(best)] += differences[group]
            counts[: len(best)] += 1
        patterns = totals / counts[:, None]
        if not moved:
            break
    return np.concatenate(places)
