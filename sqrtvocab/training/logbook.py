"""What a run tells about itself: TensorBoard, `metrics.jsonl` with the same numbers, and one live line."""

from __future__ import annotations

import atexit
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from sqrtvocab.atomic import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUIET_SECONDS = 15  # between progress lines in a log file


class Logbook:
    """Writes one run's records into its folder; on all ranks but the first it does nothing.

    TensorBoard takes the folder as one run, so runs side by side overlay. `add_scalars` and `add_hparams` are
    avoided because both open further runs.

    Args:
        folder: the run folder.
        start_step: the step the run goes on from. Records of later steps are dropped: a run that was killed
            has written some past its checkpoint.
        enabled: false on all ranks but the first.
    """

    def __init__(self, folder: Path, *, start_step: int = 0, enabled: bool = True) -> None:
        self._printed = -math.inf
        self._live = enabled and sys.stderr.isatty()
        self._writer: SummaryWriter | None = None
        if not enabled:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        _drop_after(path, start_step)
        self._metrics = path.open("a", encoding="utf-8")
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1, flush_secs=10)
        atexit.register(self.close)  # a run that fails should still show how it came to that

    def scalars(self, step: int, values: Mapping[str, float], **axes: float) -> None:
        """Record numbers at `step`. `axes` (minutes, images) go to `metrics.jsonl` only, to plot against."""
        if self._writer is None:
            return
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._metrics.write(json.dumps({"step": step, **axes, **values}) + "\n")
        self._metrics.flush()

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """Show Markdown text in TensorBoard."""
        if self._writer is not None:
            self._writer.add_text(tag, markdown, step)

    def figure(self, tag: str, figure: Figure, step: int) -> None:
        """Show a matplotlib figure in TensorBoard, and close it."""
        if self._writer is not None:
            self._writer.add_figure(tag, figure, step)

    def hparams(self, settings: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Fill the run's row in TensorBoard's HPARAMS table. The metrics must have been recorded as
        scalars."""
        if self._writer is None or self._writer.file_writer is None:
            return
        plain = {
            key: value if type(value) in (int, float, str) else str(value) for key, value in settings.items()
        }
        for summary in hparams(plain, dict(metrics)):
            self._writer.file_writer.add_summary(summary)

    def progress(self, line: str) -> None:
        """Replace the live line on a terminal; into a file or pipe print it now and then."""
        if self._writer is None:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._printed >= _QUIET_SECONDS:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line that stays, clear of the live one."""
        if self._writer is None:
            return
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr)
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Bring everything to the files and close them."""
        if self._writer is not None:
            self._writer.close()
            self._metrics.close()
            self._writer = None
            atexit.unregister(self.close)


def markdown_table(rows: Mapping[str, object]) -> str:
    """A two-column Markdown table, for `Logbook.text`."""
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())])


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, without a last line torn by a kill."""
    records = []
    for line in path.read_text("utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [json.dumps(record) + "\n" for record in read_metrics(path) if record["step"] <= step]
    write_text(path, "".join(kept))
