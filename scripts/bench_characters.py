"""How fast `render_characters` draws, beside FreeType itself.

    python scripts/bench_characters.py                     # 2,000 syllables of each face on the machine
    python scripts/bench_characters.py --script han --characters 500

Both draw the same characters of the same faces at the same size in as many processes. FreeType's part is the
call that makes a picture of one character (Pillow's `getmask2`) and nothing else; ours centres it, leaves out
what is blank, encodes it as PNG and writes Parquet. Rates are by the clock and, so that other work on the
machine counts less, by the processor.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scripts.characters.drawing import Pen
from scripts.characters.fonts import INSTALL, Face, font_files, font_folders, survey
from scripts.characters.repertoire import repertoire
from scripts.characters.writing import draw_to_file
from scripts.common.command import read_flags, run_script, say
from scripts.common.pages import table
from shapesgen.workers import Report, run
from sqrtvocab.errors import UserError
from sqrtvocab.flags import Flags, at_least


@dataclass(frozen=True)
class BenchFlags(Flags):
    """Time the drawing of characters."""

    script: str = "hangul"
    """As `render_characters --script`."""
    fonts: tuple[Path, ...] = ()
    """Folders with fonts, or font files; by default where fontconfig looks."""
    characters: int = 2000
    """Characters of each face, evenly spread."""
    size: int = 64
    """Side of the pictures."""
    workers: int = 2
    """Processes."""
    rounds: int = 3
    """How often each is timed; the best counts."""

    def problems(self) -> list[str]:
        return (
            super().problems()
            + at_least(self, 1, "characters", "workers", "rounds")
            + at_least(self, 8, "size")
        )


def bare(face: Face, report: Report, size: int) -> None:
    """FreeType's pictures of all characters of a face, thrown away."""
    font = Pen(face, size).font
    for code in face.codes:
        font.getmask2(chr(code), "L")
    report(len(face.codes), 0)


def timed(task: Callable[..., Any], faces: Sequence[Face], workers: int, count: int) -> tuple[float, float]:
    """Seconds by the clock and by the processors, the start of the processes left out."""

    def spent(kind: int) -> float:
        used = resource.getrusage(kind)
        return used.ru_utime + used.ru_stime

    def once(tasks: Sequence[Face]) -> tuple[float, float]:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        began, before = time.perf_counter(), sum(map(spent, kinds))
        run(task, tasks, workers, count, progress=False)
        return time.perf_counter() - began, sum(map(spent, kinds)) - before

    start = once([replace(face, codes=face.codes[:1]) for face in faces])  # opening a font is not drawing
    whole = once(faces)
    return whole[0] - start[0], whole[1] - start[1]


def main(config: BenchFlags) -> None:
    """Draw with both in turn, and print the table."""
    wanted = repertoire(config.script).codes
    files = font_files(config.fonts or [folder for folder in font_folders() if folder.is_dir()])
    say(f"reading {len(files)} font files")
    found = run(partial(survey, wanted=wanted), files, config.workers, len(files), progress=False)
    faces = [face for faces, _ in found for face in faces if len(face.codes) >= len(wanted) / 20]
    if not faces:
        raise UserError(f"--script {config.script}: no font has these characters; {INSTALL}")
    faces = [
        replace(face, codes=face.codes[:: max(1, len(face.codes) // config.characters)]) for face in faces
    ]
    count = sum(len(face.codes) for face in faces)
    best: dict[str, tuple[float, float]] = {}
    for number in range(config.rounds):
        say(f"round {number + 1} of {config.rounds}: {count:,} characters of {len(faces)} faces, twice")
        with tempfile.TemporaryDirectory() as folder:
            ours = partial(draw_to_file, size=config.size, folder=Path(folder))
            tasks: dict[str, Callable[..., Any]] = {
                "FreeType alone": partial(bare, size=config.size),
                "`render_characters`": ours,
            }
            for name, task in tasks.items():
                now = timed(task, faces, config.workers, count)
                best[name] = tuple(map(min, now, best.get(name, now)))  # type: ignore[assignment]
    reference = best["FreeType alone"]
    rows = [
        [
            name,
            f"{count / clock:,.0f}",
            f"{count / cores:,.0f}",
            f"{reference[0] / clock:.2f}",
            f"{reference[1] / cores:.2f}",
        ]
        for name, (clock, cores) in best.items()
    ]
    heading = ["", "characters/s", "a core second", "of FreeType's", "by core seconds"]
    print(f"{count:,} characters of {len(faces)} faces, {config.size} pixels, {config.workers} processes\n")
    print(table(heading, rows))


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(BenchFlags, __doc__)))
