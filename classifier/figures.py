"""The pictures in TensorBoard: validation images with what the model sees in them, and confusion matrices."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from shapesgen.attributes import AttributeSpace

CONFUSED = ("shape", "pattern", "rotation", "colour")
_COLUMNS = 3


def example_grid(
    images: npt.NDArray[np.uint8],
    target: npt.NDArray[np.int64],
    predicted: npt.NDArray[np.int64],
    classes: AttributeSpace | Sequence[str],
) -> Figure:
    """Images [N, H, W, C] captioned with their attributes, or with the names of their classes; a mistaken one
    reads "predicted, not true" in red."""
    rows = -(-len(images) // _COLUMNS)
    side = images.shape[1]
    # Figure, not pyplot: no global state, nothing to close, no display needed.
    figure = Figure(figsize=(3 * _COLUMNS, 1.35 * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, image, true, guess in zip(axes, images, target, predicted, strict=False):
        room = ((0, 0), (0, round(1.3 * side)), (0, 0))  # for the caption
        picture = np.pad(np.broadcast_to(image, (side, side, 3)), room, constant_values=255)
        axis.imshow(picture)
        frame = "seagreen" if true == guess else "crimson"
        axis.add_patch(Rectangle((0, 0), side - 1, side - 1, fill=False, linewidth=1.5, edgecolor=frame))
        for line, (wrong, words) in enumerate(_caption(int(true), int(guess), classes)):
            axis.text(
                1.04 * side,
                (0.07 + 0.125 * line) * side,
                words,
                fontsize=8,
                color="crimson" if wrong else "dimgrey",
                weight="bold" if wrong else "normal",
                verticalalignment="center",
            )
    return figure


def _caption(true: int, guess: int, classes: AttributeSpace | Sequence[str]) -> list[tuple[bool, str]]:
    """Lines, each with whether it tells of a mistake."""
    if isinstance(classes, AttributeSpace):
        pairs = zip(classes.describe(true).items(), classes.describe(guess).values(), strict=True)
        return [
            (is_ != seen, f"✗ {seen}, not {is_}" if is_ != seen else _worded(name, is_))
            for (name, is_), seen in pairs
        ]
    names = [textwrap.shorten(classes[number], 28, placeholder="…") for number in (guess, true)]
    return [(False, names[1])] if true == guess else [(True, f"✗ {names[0]}"), (True, f"not {names[1]}")]


def confusion_figures(
    target: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], space: AttributeSpace | None
) -> dict[str, Figure]:
    """The confusion matrices worth a look, by attribute; none for classes without attributes."""
    if space is None:
        return {}
    names = [name for name in CONFUSED if len(space.options[name]) > 1]
    return {name: confusion_figure(name, target, predicted, space) for name in names}


def confusion_figure(
    name: str, target: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], space: AttributeSpace
) -> Figure:
    """The confusion matrix of attribute `name` for classes [N] and predicted classes [N]; rows (truth) sum to
    1."""
    # Two seconds, which only one rank need spend.
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    column = space.names.index(name)
    labels = space.options[name]
    matrix = confusion_matrix(
        space.decode(target)[:, column],
        space.decode(predicted)[:, column],
        labels=range(len(labels)),
        normalize="true",
    )
    figure = Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    numbers = len(labels) <= 8  # more would not be legible at the size TensorBoard shows
    ConfusionMatrixDisplay(matrix, display_labels=labels).plot(
        ax=axis,
        cmap="Blues",
        colorbar=False,
        include_values=numbers,
        values_format=".2f",
        xticks_rotation="vertical",
    )
    axis.images[0].set_clim(0, 1)
    axis.set(xlabel=f"predicted {name}", ylabel=f"true {name}")
    return figure


def _worded(name: str, option: str) -> str:
    """An option as a reader understands it without its column: "0.5" alone could be anything."""
    words = {"rotation": f"{option}°", "texture": f"texture {option}", "opacity": f"opacity {option}"}
    return words.get(name, f"{option} border" if name == "border" else option)
