"""A shard on disk in each of the three formats: how it is written and read back."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shapesgen.attributes import ATTRIBUTES, AttributeSpace, IntArray
from shapesgen.choices import Format
from shapesgen.errors import DamagedShardError
from sqrtvocab.atomic import fsync, parse_json

SUFFIX: dict[Format, str] = {"parquet": ".parquet", "webdataset": ".tar", "folder": ".list"}

Rows = tuple[list[bytes], IntArray, IntArray]  # PNG files, labels [N], instances [N]

# What Hugging Face `datasets` needs to know to show pictures instead of bytes.
_FEATURES: dict[str, Any] = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}
_FEATURES |= {name: {"dtype": "string", "_type": "Value"} for name in ATTRIBUTES}
SCHEMA = pa.schema(
    [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("label", pa.int64()),
        *((name, pa.string()) for name in ATTRIBUTES),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


def image_name(label: int, instance: int) -> str:
    """`000123-00007.png`: label and instance."""
    return f"{label:06d}-{instance:05d}.png"


def attribute_columns(space: AttributeSpace, labels: IntArray) -> dict[str, pa.Array]:
    """The option names of `labels` [N], a column for each attribute."""
    options = space.decode(labels)  # [N, 8]
    return {
        name: pa.array(np.array(space.options[name], object)[options[:, i]], pa.string())
        for i, name in enumerate(ATTRIBUTES)
    }


def write_parquet(path: Path, space: AttributeSpace, row_groups: Iterator[Rows]) -> None:
    """One row group for each element. The PNG column is neither compressed (it is already) nor encoded, and
    has no statistics (they repeat whole images), so that a reader can take single images out of the file."""
    compression = dict.fromkeys(("image.path", "label", *ATTRIBUTES), "ZSTD") | {"image.bytes": "NONE"}
    with (
        path.open("wb") as file,  # by us: Arrow takes no names that are not UTF-8
        pq.ParquetWriter(
            file,
            SCHEMA,
            compression=compression,
            use_dictionary=list(ATTRIBUTES),
            write_statistics=["label", *ATTRIBUTES],
            write_page_checksum=True,
            store_schema=True,
        ) as writer,
    ):
        for pngs, labels, instances in row_groups:
            names = [image_name(c, i) for c, i in zip(labels.tolist(), instances.tolist(), strict=True)]
            image = pa.StructArray.from_arrays(
                [pa.array(pngs, pa.binary()), pa.array(names)], ["bytes", "path"]
            )
            columns = {"image": image, "label": pa.array(labels)} | attribute_columns(space, labels)
            writer.write_table(pa.table(columns, schema=SCHEMA), row_group_size=len(pngs))


def read_parquet(path: Path, space: AttributeSpace) -> Iterator[tuple[list[bytes], IntArray]]:
    with (
        open_regular(path) as opened,
        pq.ParquetFile(opened, page_checksum_verification=True) as file,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            labels = table["label"].to_numpy()
            for name, expected in attribute_columns(space, labels).items():
                if table[name].combine_chunks() != expected:
                    raise ValueError(f"column {name} does not belong to the labels")
            image = table["image"].combine_chunks()
            yield image.field("bytes").to_pylist(), labels


def write_webdataset(path: Path, space: AttributeSpace, row_groups: Iterator[Rows]) -> None:
    """A tar of triples `KEY.png`, `KEY.cls` (the label) and `KEY.json` (the attributes)."""
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for pngs, labels, instances in row_groups:
            for png, label, instance in zip(pngs, labels.tolist(), instances.tolist(), strict=True):
                key = image_name(label, instance)[: -len(".png")]
                attributes = json.dumps(space.describe(label)).encode()
                for suffix, content in (("png", png), ("cls", str(label).encode()), ("json", attributes)):
                    member = tarfile.TarInfo(f"{key}.{suffix}")  # time 0, owner 0: the same bytes anywhere
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def read_webdataset(path: Path, space: AttributeSpace) -> Iterator[tuple[list[bytes], IntArray]]:
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            png = _content(tar, member)
            cls, attributes = _content(tar, tar.next()), _content(tar, tar.next())
            label = int(cls)
            if parse_json(attributes) != space.describe(label):
                raise ValueError(f"{member.name}: the attributes do not belong to the label")
            yield [png], np.array([label])


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes:
    file = tar.extractfile(member) if member is not None else None
    if file is None:
        raise ValueError("the archive ends early")
    return file.read()


def picture_path(split: str, label: int, instance: int) -> str:
    """`train/000123/000123-00007.png`: an image of the folder format, within the set."""
    return f"{split}/{label:06d}/{image_name(label, instance)}"


def write_folder(path: Path, space: AttributeSpace, row_groups: Iterator[Rows]) -> None:
    """`SPLIT/LABEL/LABEL-INSTANCE.png`, as torchvision's ImageFolder reads them. The shard's own file, which
    is written last, lists its images."""
    split = path.name.lstrip(".").split("-")[0]
    root = path.parent.parent
    listing = []
    for pngs, labels, instances in row_groups:
        for png, label, instance in zip(pngs, labels.tolist(), instances.tolist(), strict=True):
            name = picture_path(split, label, instance)
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{file.name}.tmp")  # never through a link or a pipe that may be there
            draft.write_bytes(png)
            draft.replace(file)
            listing.append(name)
    path.write_text("".join(f"{name}\n" for name in listing), "ascii")


def listed(path: Path) -> list[str]:
    """The images of a shard of the folder format. Raises DamagedShardError if its list is damaged: no other
    names are followed than `write_folder` gives."""
    try:
        with open_regular(path) as file:
            names = file.read().decode("ascii").splitlines()
    except (OSError, ValueError) as error:
        raise DamagedShardError(f"data/{path.name}: cannot be read ({error})") from None
    for number, name in enumerate(names, start=1):
        if _PICTURE.fullmatch(name) is None:
            raise DamagedShardError(f"data/{path.name}: line {number} names no image of the set")
    return names


_PICTURE = re.compile(r"(train|validation|test)/[0-9]{6}/[0-9]{6}-[0-9]{5}\.png")


def read_folder(path: Path, space: AttributeSpace) -> Iterator[tuple[list[bytes], IntArray]]:
    for name in listed(path):
        picture = path.parent.parent / name
        try:
            with open_regular(picture) as file:
                yield [file.read()], np.array([int(name.split("/")[1])])
        except OSError as error:
            raise DamagedShardError(f"{name}: {error.strerror}") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises OSError for a pipe or a device too, which might never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


_WRITERS = {"parquet": write_parquet, "webdataset": write_webdataset, "folder": write_folder}
_READERS = {"parquet": read_parquet, "webdataset": read_webdataset, "folder": read_folder}


def write_shard(path: Path, form: Format, space: AttributeSpace, row_groups: Iterator[Rows]) -> None:
    """Write a shard and see it safely on the disk. Raises OSError, for instance when the disk is full."""
    _WRITERS[form](path, space, row_groups)
    fsync(path)


def read_shard(path: Path, form: Format, space: AttributeSpace) -> Iterator[tuple[list[bytes], IntArray]]:
    """The PNG files and labels of a shard, some at a time. Raises DamagedShardError."""
    try:
        yield from _READERS[form](path, space)
    except (OSError, ValueError, KeyError, TypeError, EOFError, tarfile.TarError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DamagedShardError(f"data/{path.name}: cannot be read ({reason})") from None


def stored(path: Path, form: Format) -> tuple[int, str]:
    """How many bytes a shard has on disk, and their SHA-256. (0, "") if files are missing or unreadable."""
    size, digest = 0, hashlib.sha256()
    try:
        files = [path]
        if form == "folder":
            files += [path.parent.parent / name for name in listed(path)]
        for name in files:
            with open_regular(name) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    size += len(block)
    except (OSError, DamagedShardError):
        return 0, ""
    return size, digest.hexdigest()
