"""The set on disk: each face's pictures first, then the Parquet files of the set, then its manifest.

OUT/faces/KEY.parquet          while it is made: what one face draws; kept if the run is killed
OUT/data/SPLIT-I-of-N.parquet  one file for each face, as Hugging Face has them
OUT/preview.png, taxonomy.csv  a sheet to look at; the radicals, where they are known
OUT/manifest.json              settings, classes, fonts, written last
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scripts.characters.drawing import draw_face
from scripts.characters.fonts import Face
from shapesgen.choices import Split
from shapesgen.workers import Report
from sqrtvocab.atomic import fsync

FORMAT = 2  # to be raised when the same font gives other pictures
_ROW_GROUP = 1024


@dataclass(frozen=True)
class Drawing:
    """What a face drew, on disk."""

    face: Face
    path: Path
    codes: tuple[int, ...]
    blank: int
    boxes: int
    problem: str = ""  # why nothing could be drawn


def draw_to_file(face: Face, report: Report, size: int, folder: Path) -> Drawing:
    """Draw a face, unless an earlier run has."""
    path = folder / f"{_key(face, size)}.parquet"
    if not path.exists():
        try:
            drawn = draw_face(face, size, report)
        except OSError as error:
            report(len(face.codes), 0)
            return Drawing(face, path, (), 0, 0, str(error))
        counts = {"blank": str(drawn.blank), "boxes": str(drawn.boxes)}
        columns = {"code": pa.array(drawn.codes, pa.int32()), "png": pa.array(drawn.files, pa.binary())}
        _write(path, pa.table(columns).replace_schema_metadata(counts), ["code"])
    else:
        report(len(face.codes), 0)
    with pq.ParquetFile(path) as file:
        known = file.schema_arrow.metadata
        codes = tuple(file.read(columns=["code"])["code"].to_pylist())
    return Drawing(face, path, codes, int(known[b"blank"]), int(known[b"boxes"]))


def pictures_of(path: Path, codes: set[int]) -> dict[int, bytes]:
    """The PNG files of those of the characters that a face drew."""
    table = pq.read_table(path)
    found = table["code"].to_numpy()
    rows = [row for row, code in enumerate(found.tolist()) if code in codes]
    return {int(found[row]): table["png"][row].as_py() for row in rows}


@dataclass(frozen=True)
class Part:
    """A file of the set."""

    drawing: Drawing
    path: Path
    family: str
    split: Split


def parts_of(
    drawings: Sequence[Drawing], splits: Mapping[str, Split], out: Path, kin: Mapping[str, str]
) -> list[Part]:
    """A file for each face, numbered within its split."""
    parts = []
    for split in dict.fromkeys(splits.values()):
        mine = [each for each in drawings if splits[kin[each.face.family]] == split]
        for number, drawing in enumerate(mine):
            path = out / "data" / f"{split}-{number:05d}-of-{len(mine):05d}.parquet"
            parts.append(Part(drawing, path, kin[drawing.face.family], split))
    return parts


def write_part(
    part: Part, report: Report, classes: Sequence[int], columns: Mapping[str, Sequence[str]]
) -> int:
    """Write a file of the set -> its number of pictures.

    Args:
        classes: [V] code points, ascending.
        columns: what is known of each class, [V] texts.
    """
    table = pq.read_table(part.drawing.path)
    codes = table["code"].to_numpy()
    labels = np.searchsorted(classes, codes)
    labels[labels == len(classes)] = 0
    rows = np.flatnonzero(np.asarray(classes)[labels] == codes)
    labels, codes = labels[rows], codes[rows]
    face = part.drawing.face
    image = pa.StructArray.from_arrays(
        [
            table["png"].take(rows).combine_chunks(),
            pa.array([f"{face.name}/U+{code:04X}.png" for code in codes.tolist()]),
        ],
        ["bytes", "path"],
    )
    values = {
        "image": image,
        "label": pa.array(labels, pa.int64()),
        "character": pa.array([chr(code) for code in codes.tolist()]),
        "code_point": pa.array(codes, pa.int32()),
        "family": pa.array([part.family] * len(rows), pa.string()),
        "face": pa.array([face.name] * len(rows), pa.string()),
        **{name: pa.array([column[label] for label in labels.tolist()]) for name, column in columns.items()},
    }
    features: dict[str, Any] = {
        name: {"dtype": str(each.type), "_type": "Value"} for name, each in values.items()
    }
    features["image"] = {"_type": "Image"}
    features["label"] = {"names": [chr(code) for code in classes], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    texts = [name for name in values if name not in ("image", "label", "character", "code_point")]
    _write(part.path, pa.table(values).replace_schema_metadata(metadata), texts)
    report(len(rows), part.path.stat().st_size)
    return len(rows)


def _write(path: Path, table: pa.Table, texts: Sequence[str]) -> None:
    """A whole file or none. Pictures are compressed by what takes least time."""
    draft = path.with_name(f".{path.name}.tmp")
    packed = {name: "ZSTD" for name in table.column_names if name not in ("image", "png")}
    with draft.open("wb") as file:  # by us: Arrow takes no names that are not UTF-8
        pq.write_table(
            table,
            file,
            row_group_size=_ROW_GROUP,
            compression={**packed, "png": "SNAPPY", "image.bytes": "SNAPPY", "image.path": "ZSTD"},
            use_dictionary=list(texts),
            write_statistics=list(texts),
            write_page_checksum=True,
        )
    fsync(draft)
    draft.replace(path)
    fsync(path.parent)


def _key(face: Face, size: int) -> str:
    stat = face.path.stat()
    parts = [FORMAT, face.path, stat.st_size, stat.st_mtime_ns, face.number, size, face.codes]
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogateescape")).hexdigest()[:24]
