"""Pictures in a table: CSV and JSONL with paths, Parquet with paths or the pictures themselves.

Parquet is read as Hugging Face writes it: the column `image` a struct of bytes and path, the names of integer
labels in the schema's metadata. Splits are told by a column `split`, or by the names of several files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from classifier.images.listing import Found, split_named, split_of_file
from classifier.images.stores import Files, Rows, Store
from shapesgen.choices import Split
from sqrtvocab.atomic import parse_json
from sqrtvocab.errors import UserError

SUFFIXES = (".parquet", ".csv", ".jsonl")
_IMAGE_COLUMNS = ("image", "file_name", "path", "file", "img")
_LABEL_COLUMNS = ("label", "class", "fine_label", "labels")


@dataclass
class _Table:
    """One file of the source."""

    path: Path
    values: list[Any] = field(default_factory=list)  # labels
    paths: list[str] | None = None  # of the pictures; None if they are in the table itself
    keys: list[str] = field(default_factory=list)
    splits: list[str] | None = None
    names: list[str] | None = None
    column: str = ""


def find_tables(folder: Path, image_column: str | None, label_column: str | None) -> list[Path]:
    """The tables of a folder, of one kind: Parquet at any depth, else CSV or JSONL in the folder itself.

    A CSV or JSONL file beside class folders counts only if its columns say that it lists pictures."""
    if tables := sorted(folder.rglob("*.parquet")):
        return tables
    for suffix, columns in ((".csv", _csv_columns), (".jsonl", _jsonl_columns)):
        tables = sorted(folder.glob(f"*{suffix}"))
        images = (image_column,) if image_column else _IMAGE_COLUMNS
        labels = (label_column,) if label_column else _LABEL_COLUMNS
        tables = [path for path in tables if {*images} & columns(path) and {*labels} & columns(path)]
        if tables:
            return tables
    return []


def _csv_columns(path: Path) -> set[str]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return set(csv.DictReader(file).fieldnames or ())


def _jsonl_columns(path: Path) -> set[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return set(parse_json(file.readline()))
    except (ValueError, TypeError):
        return set()


def read_tables(
    root: Path, tables: Sequence[Path], image_column: str | None, label_column: str | None
) -> Found:
    """The pictures that the tables list.

    Args:
        root: what `--data` names.
        image_column, label_column: None finds them by their usual names.

    Raises UserError for a file that cannot be read, or that lacks the columns.
    """
    source = f"--data {root}"
    readers = {".parquet": _read_parquet, ".csv": _read_csv, ".jsonl": _read_jsonl}
    try:
        read = [readers[path.suffix.lower()](path, image_column, label_column) for path in tables]
    except OSError as error:
        raise UserError(f"{source}: {error.filename or ''} cannot be read ({error.strerror})") from error
    names = read[0].names
    if any(table.names != names for table in read):
        raise UserError(f"{source}: its files do not agree in the names of the labels")
    if len({table.paths is None for table in read}) > 1:
        raise UserError(f"{source}: some of its files hold pictures, and others only their paths")
    base = root if root.is_dir() else root.parent
    splits: list[Split | None] = []
    for table in read:
        of_file = split_of_file(str(table.path.relative_to(base))) if len(read) > 1 else None
        splits += [of_file] * len(table.values) if table.splits is None else _splits(table)
    values = _labels(source, [value for table in read for value in table.values])
    keys = [key for table in read for key in table.keys]
    notes: tuple[str, ...] = ()
    store: Store
    if read[0].paths is None:
        counts = [len(table.values) for table in read]
        rows = np.concatenate([np.arange(count) for count in counts])
        store = Rows(
            [table.path for table in read], read[0].column, np.repeat(range(len(read)), counts), rows
        )
        if len(set(keys)) < len(keys):  # not even with their paths are the pictures told apart
            keys = [
                f"{table.path.relative_to(base)}, row {row}"
                for table in read
                for row in range(len(table.values))
            ]
        return Found(source, store, keys, values, splits, names)
    paths = [str(table.path.parent / path) for table in read for path in table.paths or ()]
    kept = _once(source, paths, values)
    if len(kept) < len(paths):
        notes = (f"rows that name a picture a second time, left out: {len(paths) - len(kept):,}",)
    store = Files(base, [_relative(paths[i], base) for i in kept])
    chosen = ([keys[i] for i in kept], [values[i] for i in kept], [splits[i] for i in kept])
    return Found(source, store, *chosen, names, notes)


def _once(source: str, paths: list[str], values: list[Any]) -> list[int]:
    """The first row of each picture."""
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        if values[first.setdefault(path, row)] != values[row]:
            raise UserError(
                f"{source}: {path} is there twice, as {values[first[path]]!r} and as {values[row]!r}; "
                "a picture has one class"
            )
    return list(first.values())


def _relative(path: str, base: Path) -> str:
    return str(Path(path).relative_to(base)) if Path(path).is_relative_to(base) else path


def _splits(table: _Table) -> list[Split]:
    splits: list[Split] = []
    for value in table.splits or ():
        split = split_named(str(value))
        if split is None:
            raise UserError(
                f"--data {table.path}: {value!r} in the column split; expected train, validation or test"
            )
        splits.append(split)
    return splits


def _labels(source: str, values: list[Any]) -> list[str | int | None]:
    """Labels as integers where all are, else as text."""
    for row, value in enumerate(values):
        if isinstance(value, float):
            if value != value:  # what is missing in a column of numbers
                values[row] = None
            elif not value.is_integer():
                raise UserError(f"{source}: the label {value} in row {row + 1} is not a class")
            else:
                values[row] = int(value)
        elif not isinstance(value, str | int | None):
            raise UserError(f"{source}: the label in row {row + 1} is a {type(value).__name__}, not a class")
    there = {value for value in values if value is not None and value != ""}
    if there and all(isinstance(value, str) and _is_integer(value) for value in there):
        return [int(value) if value else None for value in values]
    return [value.strip() if isinstance(value, str) else value for value in values]


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and str(int(text)) == text  # 007 is a name


def _column(path: Path, columns: Iterable[str], given: str | None, usual: Sequence[str], flag: str) -> str:
    columns = list(columns)
    wanted = (given,) if given else usual
    for name in wanted:
        if name in columns:
            return name
    what = f"no column {given!r}" if given else f"none of the columns {', '.join(usual)}"
    raise UserError(f"--data {path}: {what}; it has {', '.join(columns) or 'none'}; name it with {flag}")


def _columns(
    path: Path, columns: Sequence[str], image_column: str | None, label_column: str | None
) -> tuple[str, str]:
    image = _column(path, columns, image_column, _IMAGE_COLUMNS, "--image-column")
    return image, _column(path, columns, label_column, _LABEL_COLUMNS, "--label-column")


# ---- the three kinds of files


def _read_csv(path: Path, image_column: str | None, label_column: str | None) -> _Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            columns = list(rows.fieldnames or ())
            image, label = _columns(path, columns, image_column, label_column)
            records = list(rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"--data {path}: not a readable CSV file in UTF-8 ({error})") from error
    return _table(path, records, image, label, first_line=2)


def _read_jsonl(path: Path, image_column: str | None, label_column: str | None) -> _Table:
    records, number = [], 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    record = parse_json(line)
                    if not isinstance(record, dict):
                        raise UserError(f"--data {path}: line {number} is not an object with fields")
                    records.append(record)
    except ValueError as error:  # UnicodeDecodeError, too
        raise UserError(f"--data {path}: line {number} is not JSON ({error})") from error
    image, label = _columns(path, list(records[0]) if records else [], image_column, label_column)
    return _table(path, records, image, label, first_line=1)


def _table(path: Path, records: list[dict[str, Any]], image: str, label: str, first_line: int) -> _Table:
    for number, record in enumerate(records, start=first_line):
        if not isinstance(record.get(image), str) or not record[image].strip():
            raise UserError(f"--data {path}: row {number} has no path in the column {image!r}")
    paths = [record[image].strip() for record in records]
    has_splits = bool(records) and "split" in records[0]
    return _Table(
        path,
        [record.get(label) for record in records],
        paths,
        keys=paths,
        splits=[record.get("split", "") for record in records] if has_splits else None,
    )


def _read_parquet(path: Path, image_column: str | None, label_column: str | None) -> _Table:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            image, label = _columns(path, schema.names, image_column, label_column)
            kind = schema.field(image).type
            fields = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
            wanted = [label]
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                wanted.append(image)
            elif "bytes" in fields:
                wanted += [f"{image}.path"] if "path" in fields else []
            elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
                raise UserError(
                    f"--data {path}: the column {image!r} holds {kind}; expected paths, bytes or a struct "
                    "with bytes"
                )
            has_splits = "split" in schema.names
            table = file.read(columns=[*wanted, *(["split"] if has_splits else [])])
            names = _class_names(schema, label)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--data {path}: not a readable Parquet file ({reason[:200]})") from error
    result = _Table(path, table[label].to_pylist(), names=names, column=image)
    if has_splits:
        result.splits = table["split"].to_pylist()
    rows = range(table.num_rows)
    if image not in wanted and len(wanted) == 1:
        result.keys = [f"{path.name}, row {row}" for row in rows]
    elif image in wanted:
        result.paths = table[image].to_pylist()
        for row, name in enumerate(result.paths):
            if not name:
                raise UserError(f"--data {path}: row {row + 1} has no path in the column {image!r}")
        result.keys = result.paths
    else:
        named = table[image].combine_chunks().field("path").to_pylist()
        result.keys = [name or f"{path.name}, row {row}" for row, name in zip(rows, named, strict=True)]
    return result


def _class_names(schema: pa.Schema, label: str) -> list[str] | None:
    """What Hugging Face `datasets` says of the labels."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
        return [str(name) for name in names] if features[label]["_type"] == "ClassLabel" else None
    except (KeyError, ValueError, TypeError):
        return None
