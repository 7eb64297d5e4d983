"""The pictures in TensorBoard: validation images with what the model sees in them, and what it confuses.

They are drawn at the size at which TensorBoard shows them, so that captions stay legible.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shapesgen.attributes import AttributeSpace
from sqrtvocab.training.score_figures import WIDTH, matrix_figure, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFUSED = ("shape", "pattern", "rotation", "colour")
_COLUMNS = 2
_CELL = (WIDTH / _COLUMNS, 0.95)  # inches of an example with its caption
_LETTERS = 20  # that fit beside a picture

Pixels = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]


def example_grid(
    images: Pixels, target: IntArray, predicted: IntArray, classes: AttributeSpace | Sequence[str]
) -> Figure:
    """Images [N, H, W, C] captioned with their attributes, or with the names of their classes; a mistaken one
    reads "predicted, not true" in red."""
    rows = -(-len(images) // _COLUMNS)
    figure = new_figure(WIDTH, _CELL[1] * rows)
    for number, (image, true, guess) in enumerate(zip(images, target, predicted, strict=True)):
        row, column = divmod(number, _COLUMNS)
        _picture(figure, image, (column * _CELL[0] + 0.04, row * _CELL[1] + 0.05), 0.62, true == guess)
        for line, (wrong, words) in enumerate(_caption(int(true), int(guess), classes)):
            _words(
                figure, words, (column * _CELL[0] + 0.7, row * _CELL[1] + 0.11 + 0.113 * line),
                "crimson" if wrong else "0.25",
            )  # fmt: skip
    return figure


def confused_grid(
    pairs: Sequence[tuple[Pixels, Pixels, int, int, int]], classes: AttributeSpace | Sequence[str]
) -> Figure:
    """Pictures [H, W, C] of two classes side by side, with both classes and how often one was taken for the
    other; what was true on the left."""
    height = 1.35
    figure = new_figure(WIDTH, height * max(1, -(-len(pairs) // _COLUMNS)))
    for number, (image, rival, true, guess, times) in enumerate(pairs):
        row, column = divmod(number, _COLUMNS)
        left, top = column * _CELL[0] + 0.05, row * height + 0.05
        _picture(figure, image, (left, top), 0.78, None)
        _picture(figure, rival, (left + 0.83, top), 0.78, None)
        if isinstance(classes, AttributeSpace):
            wrong = [words for is_wrong, words in _caption(true, guess, classes) if is_wrong]
            lines = [f"{times} x " + words.removeprefix("✗ ") for words in wrong[:1]]
            lines += [words.removeprefix("✗ ") for words in wrong[1:3]]
            for line, words in enumerate(lines):
                _words(figure, words, (left, top + 0.87 + 0.12 * line), "0.25")
        else:
            for side, name in enumerate((classes[true], classes[guess])):
                for line, words in enumerate(_wrapped(name, 15)):
                    _words(figure, words, (left + 0.83 * side, top + 0.87 + 0.12 * line), "0.25")
            _words(figure, f"{times} x", (left + 0.02, top + 0.07), "crimson")
    return figure


def _picture(
    figure: Figure, image: Pixels, corner: tuple[float, float], side: float, right: bool | None
) -> None:
    """A picture `side` inches wide at (left, top), framed in green or red."""
    width, height = figure.get_size_inches()
    left, top = corner
    axis = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
    axis.imshow(np.broadcast_to(image, (*image.shape[:2], 3)))
    axis.set(xticks=[], yticks=[])
    colour = {None: "0.6", True: "seagreen", False: "crimson"}[None if right is None else bool(right)]
    axis.spines[:].set(color=colour, linewidth=1 if right is None else 2)


def _words(figure: Figure, words: str, place: tuple[float, float], colour: str) -> None:
    width, height = figure.get_size_inches()
    size = 7.5 if len(words) <= _LETTERS else 6.5
    figure.text(place[0] / width, 1 - place[1] / height, words, fontsize=size, color=colour, va="center")


def _wrapped(name: str, width: int, lines: int = 3) -> list[str]:
    return textwrap.wrap(name, width, max_lines=lines, placeholder="…") or [""]


def _caption(true: int, guess: int, classes: AttributeSpace | Sequence[str]) -> list[tuple[bool, str]]:
    """Lines, each with whether it tells of a mistake."""
    if isinstance(classes, AttributeSpace):
        pairs = zip(classes.describe(true).items(), classes.describe(guess).values(), strict=True)
        return [
            (is_ != seen, f"✗ {seen}, not {is_}" if is_ != seen else worded(name, is_))
            for (name, is_), seen in pairs
            if len(classes.options[name]) > 1
        ]
    if true == guess:
        return [(False, line) for line in _wrapped(classes[true], _LETTERS, 8)]
    lines = _wrapped(f"✗ {classes[guess]}", _LETTERS, 4) + _wrapped(f"not {classes[true]}", _LETTERS, 4)
    return [(True, line) for line in lines]


def confusion_figures(
    target: IntArray, predicted: IntArray, space: AttributeSpace | None
) -> dict[str, Figure]:
    """The confusion matrices worth a look, by attribute; none for classes without attributes."""
    if space is None:
        return {}
    names = [name for name in CONFUSED if len(space.options[name]) > 1]
    return {name: confusion_figure(name, target, predicted, space) for name in names}


def confusion_figure(name: str, target: IntArray, predicted: IntArray, space: AttributeSpace) -> Figure:
    """The confusion matrix of attribute `name` for classes [N] and predicted classes [N]."""
    column = space.names.index(name)
    labels = [worded(name, option) for option in space.options[name]]
    counts = np.zeros((len(labels), len(labels)))
    np.add.at(counts, (space.decode(target)[:, column], space.decode(predicted)[:, column]), 1)
    return matrix_figure(counts, labels, f"predicted {name}", f"true {name}", name)


def worded(name: str, option: str) -> str:
    """An option as a reader understands it without its column: "0.5" alone could be anything."""
    words = {"rotation": f"{option}°", "texture": f"texture {option}", "opacity": f"opacity {option}"}
    return words.get(name, f"{option} border" if name == "border" else option)
