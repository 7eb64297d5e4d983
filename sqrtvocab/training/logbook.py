"""What a run tells about itself: TensorBoard, `metrics.jsonl` with the same numbers, and one live line."""

from __future__ import annotations

import math
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import histogram_raw, hparams, image, scalar, text

from sqrtvocab.appended import AppendedFile
from sqrtvocab.atomic import read_sealed_line, sealed_line, write_bytes
from sqrtvocab.training.board import Board
from sqrtvocab.training.event_file import EventFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = "metrics.jsonl"
_QUIET_SECONDS = 15  # between progress lines in a log file


class Logbook:
    """Writes one run's records into its folder; on all ranks but the first it does nothing.

    TensorBoard takes the folder as one run, so runs side by side overlay. `add_scalars` and `add_hparams` are
    avoided because both open further runs.

    Args:
        folder: the run folder.
        start_step: the step from which the run continues. Records of later steps are dropped: a run that was
            killed has written some past its checkpoint.
        recorded: bytes that `metrics.jsonl` had at that step; 0 if that is not known.
        enabled: false on all ranks but the first.
        board: how the run looks in TensorBoard. `metrics.jsonl` has the tags without its section.
    """

    def __init__(
        self,
        folder: Path,
        *,
        start_step: int = 0,
        recorded: int = 0,
        enabled: bool = True,
        board: Board | None = None,
    ) -> None:
        self._board = board or Board()
        self._printed = -math.inf
        self._live = enabled and sys.stderr.isatty()
        self._events: EventFile | None = None
        if not enabled:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS
        _drop_after(path, start_step, recorded)
        self._metrics = AppendedFile(path)
        self._events = EventFile(folder, purge_step=start_step + 1)
        if (layout := self._board.layout()) is not None:
            self._events.add(layout)

    def _show(self, make: Callable[[str], Summary], tag: str, step: int) -> None:
        if self._events is not None:
            self._events.add(self._board.described(make(self._board.tag(tag)), tag), step)

    def scalars(self, step: int, values: Mapping[str, float], **axes: float) -> None:
        """Record numbers at `step`. `axes` (minutes, images) go to `metrics.jsonl` only, to plot against."""
        if self._events is None:
            return
        for tag, value in values.items():
            self._show(partial(scalar, tensor=value), tag, step)
        self._metrics.write(sealed_line({"step": step, **axes, **values}))

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """Show Markdown text in TensorBoard."""
        self._show(partial(text, text=_sound(markdown)), tag, step)

    def histogram(self, tag: str, counts: npt.NDArray[np.float64], step: int) -> None:
        """Show how many things lie in each of equal parts of [0, 1]."""
        ends = np.linspace(0, 1, len(counts) + 1)[1:]
        middles = ends - ends[0] / 2
        total, square = float(counts @ middles), float(counts @ middles**2)
        summary = (0.0, 1.0, float(counts.sum()), total, square, ends.tolist(), counts.tolist())
        self._show(lambda name: histogram_raw(name, *summary), tag, step)

    def figure(self, tag: str, figure: Figure, step: int) -> None:
        """Show a matplotlib figure in TensorBoard."""
        if self._events is None:
            return
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        with unknown_glyphs_as_boxes():
            canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]  # [H, W, 3]
        self._show(partial(image, tensor=pixels, dataformats="HWC"), tag, step)

    def hparams(self, settings: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Fill the run's row in TensorBoard's HPARAMS table. The metrics must have been recorded as
        scalars."""
        if self._events is None:
            return
        plain = {
            key: value if type(value) in (int, float) else _sound(str(value))
            for key, value in settings.items()
        }
        for summary in hparams(plain, {self._board.tag(tag): value for tag, value in metrics.items()}):
            self._events.add(summary)

    def progress(self, phrases: Sequence[str]) -> None:
        """Replace the live line on a terminal by as many phrases as fit it; into a file or pipe print them
        all, now and then."""
        if self._events is None:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            line = phrases[0][:width]
            for phrase in phrases[1:]:
                if len(line) + 2 + len(phrase) > width:
                    break
                line += f"  {phrase}"
            print(f"\r{line:<{width}}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._printed >= _QUIET_SECONDS:
            self._printed = time.monotonic()
            print("  ".join(phrases), file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line that stays, clear of the live one."""
        if self._events is None:
            return
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr)
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the files. They hold everything already."""
        if self._events is not None:
            self._events.close()
            self._metrics.close()
            self._events = None


def _sound(words: str) -> str:
    """Words that can be encoded: a path may hold any bytes."""
    return words.encode("utf-8", "backslashreplace").decode()


def markdown_table(rows: Mapping[str, object]) -> str:
    """A two-column Markdown table, for `Logbook.text`."""
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())])


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, without a last line torn by a kill. Damaged lines are named on stderr
    and left out."""
    lines, damaged = _read_lines(path)
    if damaged:
        print(f"WARNING: {path}: {_listed(damaged)} damaged and left out", file=sys.stderr)
    return [record for record, _ in lines]


def _read_lines(path: Path, recorded: int = 0) -> tuple[list[tuple[dict[str, Any], bytes]], dict[int, bytes]]:
    """The records with their lines, and the damaged lines by number. What follows the last line break was
    torn by a kill, and is nobody's loss, unless it begins in the part that was `recorded` before."""
    content = path.read_bytes() if path.exists() else b""
    *lines, torn = content.split(b"\n")
    if torn and len(content) - len(torn) < recorded:
        lines.append(torn)
    sound, damaged = [], {}
    for number, line in enumerate(lines, start=1):
        try:
            record = read_sealed_line(line)
            if type(record.get("step")) is not int:
                raise ValueError("no step")
            sound.append((record, line))
        except ValueError:
            damaged[number] = line
    return sound, damaged


def _listed(numbers: Collection[int]) -> str:
    few = ", ".join(map(str, list(numbers)[:10])) + (", …" if len(numbers) > 10 else "")
    return f"line {few} is" if len(numbers) == 1 else f"lines {few} are"


def _drop_after(path: Path, step: int, recorded: int) -> None:
    """Keep the records up to `step`; set damaged lines aside, and say so."""
    lines, damaged = _read_lines(path, recorded)
    missing = recorded - (path.stat().st_size if path.exists() else 0)
    aside = path.with_name("metrics.damaged")
    if damaged:
        with aside.open("ab") as file:
            file.writelines(line + b"\n" for line in damaged.values())
        print(f"WARNING: {path}: {_listed(damaged)} damaged: set aside in {aside}", file=sys.stderr)
    kept = [(record, line) for record, line in lines if record["step"] <= step]
    newest = kept[-1][0]["step"] if kept else 0
    if newest < step:  # a checkpoint comes after the record of its step
        print(f"WARNING: {path}: nothing is left of steps {newest + 1:,} to {step:,}", file=sys.stderr)
    elif missing > 0:
        print(f"WARNING: {path}: {missing:,} bytes of records are gone from its end", file=sys.stderr)
    if path.exists():
        write_bytes(path, b"".join(line + b"\n" for _, line in kept))


@contextmanager
def unknown_glyphs_as_boxes() -> Iterator[None]:
    """Drawing names of classes in scripts that the font lacks is no reason for a warning for each letter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield
