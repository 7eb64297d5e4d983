"""`render`: images as a pure function of (seed, class, instance)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shapesgen import kernel
from shapesgen.attributes import AttributeSpace
from shapesgen.choices import ROTATION_CUES, RotationCue
from shapesgen.hashing import mix, permute, uint64
from shapesgen.kernel import CENTRE, SIDE, compiled

Images = npt.NDArray[np.uint8]

# The centres of a class's instances are distinct points of a lattice of 128 x 128 steps of 1/16 px around the
# middle of the canvas, so no image comes twice within a class.
LATTICE = 128
MAX_INSTANCES = LATTICE * LATTICE


@compiled
def _place(
    full_ids: npt.NDArray[np.int64],  # [N]
    instances: npt.NDArray[np.int64],  # [N]
    seed: np.uint64,
    centres: npt.NDArray[np.int32],  # [N, 2]
    noise_keys: npt.NDArray[np.uint32],  # [N]
) -> None:
    for n in range(full_ids.size):
        class_key = mix(mix(seed) + uint64(full_ids[n]))
        point = permute(uint64(instances[n]), uint64(7), class_key)
        centres[n, 0] = CENTRE - LATTICE // 2 + np.int32(point & uint64(LATTICE - 1))
        centres[n, 1] = CENTRE - LATTICE // 2 + np.int32(point >> uint64(7))
        noise_keys[n] = np.uint32(mix(class_key + uint64(instances[n])) >> uint64(32))


def render(
    space: AttributeSpace,
    class_ids: npt.ArrayLike,
    instances: npt.ArrayLike,
    seed: int = 0,
    rotation_cue: RotationCue = "notch",
    out: Images | None = None,
) -> Images:
    """Draw instance `instances[n]` of class `class_ids[n]` of `space`, for each n.

    The bytes depend on nothing but (seed, class, instance, rotation_cue): not on the batch, the sub-space,
    the process or the machine. Instances differ in position and noise; no two of a class are the same.

    class_ids and instances: [N], or one of them a scalar. `out` [N, 100, 100, 3] is drawn into and returned
    if given. Thread-safe; the drawing releases the GIL.

    Raises ValueError for a class id or instance out of range.
    """
    full_ids = _one_dimensional(space.full_ids(class_ids))
    instances = check_instances(instances)
    if full_ids.shape != instances.shape:
        shape = np.broadcast_shapes(full_ids.shape, instances.shape)
        full_ids = np.broadcast_to(full_ids, shape).copy()
        instances = np.broadcast_to(instances, shape).copy()
    centres = np.empty((full_ids.size, 2), np.int32)
    noise_keys = np.empty(full_ids.size, np.uint32)
    _place(full_ids, instances, uint64(check_seed(seed)), centres, noise_keys)
    return _draw(full_ids, centres, noise_keys, rotation_cue, out)


def render_centred(
    space: AttributeSpace, class_ids: npt.ArrayLike, rotation_cue: RotationCue = "notch"
) -> Images:
    """One image of each class, [N, 100, 100, 3], without what makes instances differ: every shape sits in the
    middle and noisy ones share one grain. Two classes look alike just if these images are identical.

    Raises ValueError for a class id out of range.
    """
    full_ids = _one_dimensional(space.full_ids(class_ids))
    centres = np.full((full_ids.size, 2), CENTRE, np.int32)
    return _draw(full_ids, centres, np.zeros(full_ids.size, np.uint32), rotation_cue, None)


def _draw(
    full_ids: npt.NDArray[np.int64],
    centres: npt.NDArray[np.int32],
    noise_keys: npt.NDArray[np.uint32],
    rotation_cue: RotationCue,
    out: Images | None,
) -> Images:
    shape = (full_ids.size, SIDE, SIDE, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(f"out must be contiguous uint8 {list(shape)}, got {out.dtype} {list(out.shape)}")
    options = AttributeSpace.full().decode(full_ids)  # [N, 8]
    notch = check_rotation_cue(rotation_cue) == "notch"
    kernel.draw(out.reshape(-1, SIDE, 3 * SIDE), options, centres, noise_keys, notch)
    return out


def _one_dimensional(class_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if class_ids.ndim > 1:
        raise ValueError(f"expected class ids of shape [N], got {list(class_ids.shape)}")
    return class_ids.reshape(-1)


def check_rotation_cue(rotation_cue: str) -> str:
    if rotation_cue not in ROTATION_CUES:
        raise ValueError(f"rotation_cue must be one of {', '.join(ROTATION_CUES)}, got {rotation_cue!r}")
    return rotation_cue


def check_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be 0..2^63 - 1, got {seed}")
    return seed


def check_instances(instances: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`instances` as int64; ValueError with the observed range if one does not exist."""
    array = np.asarray(instances, np.int64)
    if array.size and (array.min() < 0 or array.max() >= MAX_INSTANCES):
        raise ValueError(f"instance must be 0..{MAX_INSTANCES - 1}, got {array.min()}..{array.max()}")
    return array
