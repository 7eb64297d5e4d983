"""Draw the characters of a script in all fonts of the machine: pictures that `train_classifier` reads.

    python scripts/render_characters.py --script hangul --out runs/hangul      # 11,172 syllables
    python scripts/render_characters.py --script han --out runs/han            # U+4E00 to U+9FFF
    python scripts/render_characters.py --script han-all --out runs/han-all    # all of them
    python scripts/render_characters.py --script letters.txt --fonts FOLDER --out runs/letters
    train_classifier --data runs/hangul --grey --image-size 64

Training, validation and test have fonts of different families: what is scored is reading typefaces never
seen. A run that is stopped goes on where it was. manifest.json in --out names the fonts, their versions and
licences.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from scripts.common.command import read_flags, run_script, say
from sqrtvocab.errors import UserError
from sqrtvocab.flags import Flags, at_least

if TYPE_CHECKING:  # --help must not wait for them
    from scripts.characters.fonts import Face
    from scripts.characters.writing import Drawing, Part
    from shapesgen.choices import Split

_FEWEST = 0.05  # of the characters of the script: a face with fewer is left out
_COMPARED = 200  # characters by which kin is told
_SIZES = (8, 512)


@dataclass(frozen=True)
class RenderFlags(Flags):
    """Draw the characters of a script in all fonts of the machine."""

    out: Path
    """Folder to write to."""
    script: str = "hangul"
    """hangul, han (the basic block), han-all, or a text file with the characters."""
    fonts: tuple[Path, ...] = ()
    """Folders with fonts, or font files; by default where fontconfig looks."""
    size: int = 64
    """Side of the pictures."""
    min_families: int = 4
    """A character that fewer families draw is left out."""
    most_files: int = 4
    """Font files of a family at most, evenly chosen: what comes in 14 weights would else be most of what is
    trained on."""
    test_families: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A family for the test; can be given several times. By default a fifth of them, by their names."""
    valid_families: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A family for validation; can be given several times. By default a tenth of them."""
    workers: int | None = None
    """Processes; by default one for each core."""
    overwrite: bool = False
    """Delete the set in the folder and begin afresh."""

    def problems(self) -> list[str]:
        found = super().problems() + at_least(self, 1, "workers", "min_families", "most_files")
        if not _SIZES[0] <= self.size <= _SIZES[1]:
            found.append(f"--size must be {_SIZES[0]} to {_SIZES[1]}, got {self.size}")
        return found


def main(config: RenderFlags) -> None:
    """Read the fonts, draw, choose families and classes, write."""
    from scripts.characters.repertoire import known_of, repertoire
    from scripts.characters.writing import draw_to_file, parts_of, write_part
    from shapesgen.workers import run
    from sqrtvocab.atomic import write_bytes, write_json, write_text

    began = time.perf_counter()
    wanted = repertoire(config.script)
    workers = config.workers or _cores()
    progress = sys.stderr.isatty()
    settings = {
        "script": wanted.name, "size": config.size, "min_families": config.min_families,
        "most_files": config.most_files,
        "test_families": list(config.test_families), "valid_families": list(config.valid_families),
    }  # fmt: skip

    # 1. Fonts, and what they draw.
    faces = thinned(find_faces(config.fonts, wanted.codes, workers), config.most_files)
    made_of = {"settings": settings, "fonts": [_identity(face) for face in faces]}
    if not prepare_folder(config.out, made_of, config.overwrite):
        print(f"{config.out}: all there already")
        return
    count = sum(len(face.codes) for face in faces)
    say(f"drawing {count:,} characters with {len(faces)} faces")
    drawn_at = time.perf_counter()
    task = partial(draw_to_file, size=config.size, folder=config.out / "faces")
    order = sorted(faces, key=lambda face: -len(face.codes))  # the long ones first, so that all end together
    drawings = sorted(run(task, order, workers, count, progress), key=lambda each: faces.index(each.face))
    for each in drawings:
        if each.problem:
            say(f"left out: {each.face.name}, which FreeType cannot read ({each.problem})")
    drawings = [each for each in drawings if len(each.codes) >= _FEWEST * len(wanted.codes)]

    # 2. Families and classes.
    kin = tell_kin(drawings)
    splits, classes = choose(config, wanted.name, drawings, kin)
    columns, line = known_of(classes, wanted.name)
    if line:
        say(line)

    # 3. The set.
    parts = parts_of(drawings, splits, config.out, kin)
    total = sum(len(part.drawing.codes) for part in parts)
    pictures = run(partial(write_part, classes=classes, columns=columns), parts, workers, total, progress)
    drawn_in = time.perf_counter() - drawn_at
    write_bytes(config.out / "preview.png", preview(wanted.name, parts, classes, config.size))
    if "radical" in columns:
        lines = [
            f"{chr(code)},{radical or 'unknown'}"
            for code, radical in zip(classes, columns["radical"], strict=True)
        ]
        write_text(config.out / "taxonomy.csv", "\n".join(["class,radical", *lines]) + "\n")
    write_json(config.out / "manifest.json", made_of | manifest(parts, pictures, classes))
    shutil.rmtree(config.out / "faces")

    for split in ("train", "validation", "test"):
        mine = {part.family for part in parts if part.split == split}
        number = sum(n for part, n in zip(parts, pictures, strict=True) if part.split == split)
        print(f"{split:<11}{number:>10,} pictures, {len(mine):>2} families: {', '.join(sorted(mine))}")
    boxes, blank = sum(each.boxes for each in drawings), sum(each.blank for each in drawings)
    print(f"{len(classes):,} classes; left out: {blank:,} blank pictures, {boxes:,} boxes for missing ones")
    print(
        f"{sum(pictures):,} pictures in {config.out}, {time.perf_counter() - began:.0f} s; drawing and "
        f"writing {drawn_in:.0f} s, {sum(pictures) / drawn_in:,.0f} characters a second"
    )


def find_faces(folders: Sequence[Path], codes: Sequence[int], workers: int) -> list[Face]:
    """The faces on the machine that have any of the characters, in the order of their files."""
    from scripts.characters.fonts import font_files, font_folders, survey
    from shapesgen.workers import run

    files = font_files(folders or [folder for folder in font_folders() if folder.is_dir()])
    say(f"reading {len(files)} font files")
    found = run(partial(survey, wanted=codes), files, workers, len(files), sys.stderr.isatty())
    for path, (_, problem) in zip(files, found, strict=True):
        if problem:
            say(f"left out: {path.name}, which cannot be read ({problem})")
    return [face for faces, _ in found for face in faces if len(face.codes) >= _FEWEST * len(codes)]


def thinned(faces: Sequence[Face], most: int) -> list[Face]:
    """The faces of at most so many files of each family, evenly chosen. (Whole files: the second face of a
    collection holds only what the first draws otherwise.)"""
    files: dict[str, list[Path]] = {}
    for face in faces:
        mine = files.setdefault(face.family, [])
        if face.path not in mine:
            mine.append(face.path)
    kept = {
        (family, mine[place * len(mine) // min(most, len(mine))])
        for family, mine in files.items()
        for place in range(min(most, len(mine)))
    }
    return [face for face in faces if (face.family, face.path) in kept]


def prepare_folder(out: Path, made_of: dict[str, Any], overwrite: bool) -> bool:
    """Make the folder -> False if it holds just this set already.

    Raises:
        UserError: it holds something else.
    """
    from sqrtvocab.atomic import parse_json

    manifest = out / "manifest.json"
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: not a folder")
    if manifest.is_file():
        try:
            there = parse_json(manifest.read_bytes())
        except ValueError:
            there = {}
        if not overwrite:
            if isinstance(there, dict) and all(there.get(key) == value for key, value in made_of.items()):
                return False
            raise UserError(
                f"--out {out} holds a set of other settings or fonts; name another folder, or --overwrite"
            )
        manifest.unlink()
        shutil.rmtree(out / "data", ignore_errors=True)
    elif out.is_dir() and not (out / "faces").is_dir() and any(out.iterdir()):
        raise UserError(f"--out {out}: not empty, and no set of characters; name another folder")
    for name in ("faces", "data"):
        (out / name).mkdir(parents=True, exist_ok=True)
    return True


def tell_kin(drawings: Sequence[Drawing]) -> dict[str, str]:
    """Family -> the name of all that are one family with it."""
    import io

    import numpy as np
    from PIL import Image

    from scripts.characters.families import merge_kin, outline
    from scripts.characters.writing import pictures_of

    codes = sorted({code for each in drawings for code in each.codes})
    sample = (
        {codes[place] for place in np.linspace(0, len(codes) - 1, _COMPARED).astype(int)} if codes else set()
    )
    samples = []
    for each in drawings:
        files = pictures_of(each.path, sample)
        samples.append(
            {code: outline(np.asarray(Image.open(io.BytesIO(file)))) for code, file in files.items()}
        )
    kin = merge_kin([each.face.family for each in drawings], samples)
    for name in sorted({name for name in kin.values() if " + " in name}):
        say(f"one family, by their outlines: {name}")
    return kin


def choose(
    config: RenderFlags, script: str, drawings: Sequence[Drawing], kin: Mapping[str, str]
) -> tuple[dict[str, Split], list[int]]:
    """The split of each family, and the classes: code points that enough families draw, one in training.

    Raises:
        UserError: too few families.
    """
    from scripts.characters.families import choose_splits
    from scripts.characters.fonts import INSTALL

    has: dict[str, set[int]] = {}
    for each in drawings:
        has.setdefault(kin[each.face.family], set()).update(each.codes)
    half = max((len(codes) for codes in has.values()), default=0) / 2
    whole = sorted(family for family, codes in has.items() if len(codes) >= half)
    if len(whole) < max(3, config.min_families):
        found = f"only {len(whole)} font families ({', '.join(whole)})" if whole else "no font family"
        needed = "3 are needed, for training, validation and test"
        if config.min_families > 3:
            needed = f"--min-families {config.min_families} needs as many"
        raise UserError(f"--script {script}: {found} with these characters; {needed}; {INSTALL}")
    splits = choose_splits(
        {family: len(codes) for family, codes in has.items()},
        int(half),
        config.test_families,
        config.valid_families,
    )
    families = Counter(code for codes in has.values() for code in codes)
    trained = set().union(*(codes for family, codes in has.items() if splits[family] == "train"))
    classes = sorted(code for code in trained if families[code] >= config.min_families)
    if len(classes) < 2:
        raise UserError(
            f"--min-families {config.min_families}: fewer than two characters are drawn by so many"
        )
    return splits, classes


def preview(script: str, parts: Sequence[Part], classes: Sequence[int], size: int) -> bytes:
    """A line for each family: its first face."""
    import numpy as np

    from scripts.characters.sheet import COLUMNS, sheet
    from scripts.characters.writing import pictures_of

    codes = [classes[place] for place in np.unique(np.linspace(0, len(classes) - 1, COLUMNS).astype(int))]
    first = {part.family: part for part in reversed(parts)}
    lines = sorted(
        first.values(), key=lambda part: (("train", "validation", "test").index(part.split), part.family)
    )
    rows = [(part.family, part.split, pictures_of(part.drawing.path, set(codes))) for part in lines]
    return sheet(f"{script}: {len(classes):,} classes, {len(rows)} families", rows, codes, size)


def manifest(parts: Sequence[Part], pictures: Sequence[int], classes: Sequence[int]) -> dict[str, Any]:
    """What the set holds, and of which fonts."""
    files = [
        {
            "file": f"data/{part.path.name}",
            "split": part.split,
            "family": part.family,
            "face": part.drawing.face.name,
            "font_file": part.drawing.face.path.name,
            "version": part.drawing.face.version,
            "licence": part.drawing.face.licence,
            "licence_url": part.drawing.face.licence_url,
            "pictures": number,
            "left_out": {"blank": part.drawing.blank, "missing": part.drawing.boxes},
        }
        for part, number in zip(parts, pictures, strict=True)
    ]
    return {"classes": len(classes), "pictures": sum(pictures), "files": files}


def _identity(face: Face) -> list[Any]:
    return [face.path.name, face.number, face.path.stat().st_size, len(face.codes)]


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(RenderFlags, __doc__)))
