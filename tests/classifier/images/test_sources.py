"""Every kind of source as a real tree of files: the pictures, classes and splits that it holds."""

import csv
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torchvision.datasets import ImageFolder

from classifier.images import stores
from classifier.images.decode import decode
from classifier.images.splits import held_out
from sqrtvocab.errors import UserError

SPLITS = ("train", "validation", "test")


def counts(opened):
    return tuple(len(opened[split]) for split in SPLITS)


def pixels_by_class(opened, splits=SPLITS):
    """The pictures of each class, whatever their order."""
    found = {}
    for split in splits:
        images, labels = opened[split].batch(range(len(opened[split])))
        for image, label in zip(images, labels, strict=True):
            found.setdefault(opened[split].classes[label], set()).add(image.tobytes())
    return found


# ---- folders


def test_an_image_folder_is_read_as_torchvision_reads_it(picture, write_tree, open_at, tmp_path):
    files = {
        f"{name}/{file}": picture(10 * n + i, (20 + i, 30))
        for n, name in enumerate(("dog", "Cat", "10", "9"))
        for i, file in enumerate(("1.png", "2.JPG", "a/b/3.bmp", "4.webp"))
    }
    root = write_tree(tmp_path / "set", files)
    opened = open_at(root, valid_fraction=0, test_fraction=0)
    theirs = ImageFolder(str(root))
    train = opened["train"]
    assert list(train.classes) == theirs.classes
    assert sorted(train.labels) == theirs.targets
    expected = {}
    for path, label in theirs.samples:
        with open(path, "rb") as file:
            expected.setdefault(theirs.classes[label], set()).add(decode(file.read(), 16).tobytes())
    assert pixels_by_class(opened) == expected
    assert train.shape == (16, 16, 3)
    assert train.space is train.ceiling() is None


@pytest.mark.parametrize("validation", ["val", "validation", "Valid"])
def test_splits_as_folders(picture, write_tree, open_at, tmp_path, validation):
    files = {
        f"{split}/{name}/{i}.png": picture(i)
        for split, many in (("train", 3), (validation, 2), ("test", 1))
        for name in "ab"
        for i in range(many)
    }
    root = write_tree(tmp_path / "set", {**files, "extra/x.png": picture(0)})
    opened = open_at(root)
    assert counts(opened) == (6, 4, 2)
    assert list(opened["test"].classes) == ["a", "b"]
    assert opened.notes == ("beside the folders of the splits, left out: extra",)


def test_a_class_named_train_is_no_split(picture, write_tree, open_at, tmp_path):
    files = {f"{name}/{i}.png": picture(i) for name in ("train", "plane") for i in range(3)}
    assert list(open_at(write_tree(tmp_path / "set", files))["train"].classes) == ["plane", "train"]


def test_a_missing_split_is_cut_from_training(picture, write_tree, open_at, tmp_path):
    files = {
        f"{split}/{name}/{i}.png": picture(i)
        for split in ("train", "test")
        for name in "ab"
        for i in range(20)
    }
    opened = open_at(write_tree(tmp_path / "set", files), valid_fraction=0.25)
    assert counts(opened) == (30, 10, 40)
    assert opened.notes == ("25% of the training pictures, by class, are kept for validation",)


def test_what_is_left_out_is_said(picture, write_tree, open_at, tmp_path):
    files = {f"{name}/{i}.png": picture(i) for name in "ab" for i in range(2)}
    others = {"a/notes.txt": b"x", "b/.DS_Store": b"x", "loose.png": picture(9), ".hidden/x.png": picture(9)}
    root = write_tree(tmp_path / "set", {**files, **others})
    (root / "empty").mkdir()
    opened = open_at(root, valid_fraction=0, test_fraction=0)
    assert list(opened["train"].classes) == ["a", "b"]
    assert opened.notes == (
        "pictures in no class folder, left out: 1",
        "files left out, for their names are not those of pictures: 1",
        "folders left out, for they hold no pictures: 1, such as empty",
    )


def test_links_in_circles_end(picture, write_tree, open_at, tmp_path):
    root = write_tree(tmp_path / "set", {f"{name}/{i}.png": picture(i) for name in "ab" for i in range(2)})
    (root / "a" / "up").symlink_to(root / "a")
    assert counts(open_at(root, valid_fraction=0, test_fraction=0)) == (4, 0, 0)


# ---- Hugging Face Parquet


def write_parquet(
    path, files, labels, names=None, compression="snappy", row_group_size=3, image="struct", paths=None
):
    paths = paths or [f"{i}.png" for i in range(len(files))]
    if image == "struct":
        column = pa.StructArray.from_arrays(
            [pa.array(files, pa.binary()), pa.array(paths)], ["bytes", "path"]
        )
    else:
        column = pa.array(files, pa.binary())
    table = pa.table({"image": column, "label": pa.array(labels)})
    features = {"image": {"_type": "Image"}}
    if names:
        features["label"] = {"names": names, "_type": "ClassLabel"}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression=compression, row_group_size=row_group_size)


@pytest.mark.parametrize("image", ["struct", "bytes"])
def test_hugging_face_parquet(picture, encoded, open_at, tmp_path, image):
    root, names = tmp_path / "set", ["zebra", "ant", "unseen"]
    files = {}
    for split, many in (("train", 10), ("validation", 4), ("test", 2)):
        files[split] = [encoded(picture(10 * many + i)) for i in range(many)]
        half = many // 2
        for part in (0, 1):
            rows = slice(part * half, (part + 1) * half)
            labels = [i % 2 for i in range(many)][rows]
            path = root / "data" / f"{split}-{part:05d}-of-00002.parquet"
            write_parquet(path, files[split][rows], labels, names, image=image)
    opened = open_at(root)
    assert counts(opened) == (10, 4, 2)
    assert list(opened["train"].classes) == names
    assert opened.notes == ("classes without a training picture: 1 of 3",)
    images, labels = opened["train"].batch([7, 0, 9])
    assert labels.tolist() == [1, 0, 1]
    for image, row in zip(images, (7, 0, 9), strict=True):
        assert np.array_equal(image, decode(files["train"][row], 16))


def test_datasets_of_hugging_face_itself(picture, open_at, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    from datasets import ClassLabel, Dataset, Features, Image

    pictures = [picture(i) for i in range(8)]
    features = Features({"image": Image(), "label": ClassLabel(names=["one", "two"])})
    data = Dataset.from_dict({"image": pictures, "label": [0, 1] * 4}, features)
    data.to_parquet(str(tmp_path / "set.parquet"))
    opened = open_at(tmp_path / "set.parquet", size=20, valid_fraction=0, test_fraction=0)
    assert list(opened["train"].classes) == ["one", "two"]
    images, labels = opened["train"].batch(range(8))
    assert labels.tolist() == [0, 1] * 4
    assert np.array_equal(images[3], np.asarray(pictures[3])[:, 2:22])  # 24 x 20


def test_a_split_without_labels_is_left_out(picture, encoded, open_at, tmp_path):
    files = [encoded(picture(i)) for i in range(4)]
    write_parquet(tmp_path / "set" / "train.parquet", files, [0, 1, 0, 1], ["a", "b"])
    write_parquet(tmp_path / "set" / "test.parquet", files, [-1, -1, -1, -1], ["a", "b"])
    opened = open_at(tmp_path / "set", valid_fraction=0, test_fraction=0)
    assert counts(opened) == (4, 0, 0)
    assert opened.notes == ("test is left out: it has no labels",)


def test_one_picture_without_a_label_is_refused(picture, encoded, open_at, tmp_path):
    write_parquet(tmp_path / "x.parquet", [encoded(picture(i)) for i in range(3)], [0, None, 1])
    with pytest.raises(UserError, match=r"x\.parquet: 1\.png has no label"):
        open_at(tmp_path / "x.parquet")


def test_duplicate_class_names_are_told_apart(picture, encoded, open_at, tmp_path):
    write_parquet(
        tmp_path / "x.parquet",
        [encoded(picture(i)) for i in range(6)],
        [0, 1, 2] * 2,
        ["crane", "cat", "crane"],
    )
    opened = open_at(tmp_path / "x.parquet", valid_fraction=0, test_fraction=0)
    assert list(opened["train"].classes) == ["crane (0)", "cat", "crane (2)"]
    assert opened["train"].labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_label_beyond_the_names(picture, encoded, open_at, tmp_path):
    write_parquet(tmp_path / "x.parquet", [encoded(picture(i)) for i in range(3)], [0, 1, 7], ["a", "b"])
    with pytest.raises(
        UserError, match=r"the class 'number 7' of 2\.png is none of the 2 that the file names"
    ):
        open_at(tmp_path / "x.parquet")


@pytest.fixture
def groups_read(monkeypatch):
    """The row groups that have been read of any Parquet file, in order."""
    read, really = [], pq.ParquetFile.read_row_group

    def counted(self, group, *args, **options):
        read.append(group)
        return really(self, group, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    return read


@pytest.mark.parametrize("kept", ["none", "two", "all"])
def test_a_batch_on_the_fly_reads_each_row_group_once(
    picture, encoded, open_at, tmp_path, groups_read, monkeypatch, kept
):
    files = [encoded(picture(i)) for i in range(12)]
    write_parquet(tmp_path / "x.parquet", files, [0, 1] * 6, ["a", "b"])  # four row groups of three
    group = sum(len(file) + 8 for file in files) // 4  # bytes: the pictures and where each begins and ends
    monkeypatch.setattr(stores, "KEPT_BYTES", {"none": 0, "two": int(2.5 * group), "all": 10**9}[kept])
    train = open_at(tmp_path / "x.parquet", valid_fraction=0, test_fraction=0, cache_limit=0)["train"]
    groups_read.clear()
    chosen = [7, 1, 10, 0, 8, 4, 11, 2, 6, 9, 5, 3, 7]
    images, labels = train.batch(chosen)
    assert sorted(groups_read) == [0, 1, 2, 3]
    assert np.array_equal(images, np.stack([decode(files[i], 16) for i in chosen]))
    assert np.array_equal(labels, np.array(chosen) % 2)
    groups_read.clear()
    for _ in range(2):
        images, _ = train.batch([11, 7])  # of the last two row groups
        assert np.array_equal(images, np.stack([decode(files[i], 16) for i in (11, 7)]))
    assert groups_read == ([2, 3, 2, 3] if kept == "none" else [])
    train.batch([1])
    train.batch([10])
    assert groups_read[-1:] == {"none": [3], "two": [0], "all": []}[kept]


# ---- tables


def write_table(path, records):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    return path


@pytest.fixture
def photos(picture, write_tree, tmp_path):
    """Nine pictures 0.png .. 8.png in `photos`, and the folder they are in."""
    write_tree(tmp_path / "photos", {f"{i}.png": picture(i) for i in range(9)})
    return tmp_path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("labels", ["integers with gaps", "text"])
def test_tables(photos, open_at, suffix, labels):
    values = [100, 7, 20] if labels != "text" else ["sea, blue", "Ähre", "b"]
    records = [{"path": f"photos/{i}.png", "label": values[i % 3]} for i in range(9)]
    opened = open_at(write_table(photos / f"list{suffix}", records), valid_fraction=0, test_fraction=0)
    expected = [7, 20, 100] if labels != "text" else sorted(values)
    assert list(opened["train"].classes) == [str(value) for value in expected]
    images, numbers = opened["train"].batch(range(9))
    for i in range(9):
        assert expected[numbers[i]] == values[i % 3]
        assert np.array_equal(images[i], decode((photos / "photos" / f"{i}.png").read_bytes(), 16))


def test_named_columns_and_absolute_paths(photos, open_at):
    records = [
        {"where": str(photos / "photos" / f"{i}.png"), "path": "x", "kind": "ab"[i % 2]} for i in range(4)
    ]
    table = write_table(photos / "list.csv", records)
    opened = open_at(table, image_column="where", label_column="kind", valid_fraction=0, test_fraction=0)
    assert opened["train"].labels.tolist() == [0, 1, 0, 1]


def test_a_column_of_splits(photos, open_at):
    splits = ["train"] * 4 + ["val"] * 3 + ["test"] * 2
    records = [{"path": f"photos/{i}.png", "label": i % 2, "split": splits[i]} for i in range(9)]
    assert counts(open_at(write_table(photos / "list.jsonl", records))) == (4, 3, 2)
    records[2]["split"] = "somewhere"
    with pytest.raises(
        UserError, match="'somewhere' in the column split; expected train, validation or test"
    ):
        open_at(write_table(photos / "list.jsonl", records))


def test_a_folder_with_a_table_and_its_pictures(photos, open_at):
    """As Hugging Face's `imagefolder`: metadata.csv beside the pictures."""
    records = [{"file_name": f"photos/{i}.png", "label": i % 3} for i in range(9)]
    write_table(photos / "metadata.csv", records)
    opened = open_at(photos, valid_fraction=0, test_fraction=0)
    assert opened["train"].labels.tolist() == [0, 1, 2] * 3


def test_a_table_of_something_else_beside_class_folders(picture, write_tree, open_at, tmp_path):
    root = write_tree(tmp_path / "set", {f"{name}/{i}.png": picture(i) for name in "ab" for i in range(2)})
    write_table(root / "names.csv", [{"folder": "a", "title": "Apple"}])
    assert list(open_at(root)["train"].classes) == ["a", "b"]


def test_names_like_numbers_with_zeros_stay_names(photos, open_at):
    records = [{"path": f"photos/{i}.png", "label": ["007", "7"][i % 2]} for i in range(4)]
    opened = open_at(write_table(photos / "list.csv", records))
    assert list(opened["train"].classes) == ["007", "7"]


def test_a_picture_listed_twice(photos, open_at):
    records = [{"path": f"photos/{i % 3}.png", "label": i % 3} for i in range(5)]
    opened = open_at(write_table(photos / "list.csv", records), valid_fraction=0, test_fraction=0)
    assert counts(opened) == (3, 0, 0)
    assert opened.notes == ("rows that name a picture a second time, left out: 2",)
    records[3]["label"] = 2
    with pytest.raises(
        UserError, match=r"photos/0\.png is there twice, as 0 and as 2; a picture has one class"
    ):
        open_at(write_table(photos / "list.csv", records))


# ---- splits by fraction


def test_held_out_by_class_whatever_the_order():
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 10, 100, 1000]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    keys = [f"{label}/{i}.png" for label, size in enumerate(sizes) for i in range(size)]
    names = [f"class {i}" for i in range(len(sizes))]
    splits = held_out(keys, labels, names, 0.1, 0.2)
    table = [Counter(splits[labels == label].tolist()) for label in range(len(sizes))]
    assert all(row[0] >= 1 for row in table)
    assert table[0] == {0: 1}
    for size, row in zip(sizes, table, strict=True):
        assert abs(row[1] - 0.1 * size) < 1
        assert abs(row[2] - 0.2 * size) < 1
    order = rng.permutation(len(keys))
    again = held_out([keys[i] for i in order], labels[order], names, 0.1, 0.2)
    assert np.array_equal(again, splits[order])


def test_small_classes_have_their_share_in_validation():
    labels = np.repeat(np.arange(2000), 3)
    keys = [f"{label}/{i}" for i, label in enumerate(labels)]
    splits = held_out(keys, labels, [str(i) for i in range(2000)], 0.1, 0.1)
    assert abs(np.mean(splits == 1) - 0.1) < 0.02
    assert abs(np.mean(splits == 2) - 0.1) < 0.02
    assert np.array_equal(np.unique(labels[splits == 0]), np.arange(2000))


def test_nothing_is_held_out_for_a_share_of_nothing():
    assert not held_out(["a", "b", "c"], np.array([0, 1, 1]), ["x", "y"], 0, 0).any()


def test_adding_pictures_moves_few():
    keys = [str(i) for i in range(1000)]
    labels, names = np.zeros(1000, np.int64), ["x"]
    before = held_out(keys[:900], labels[:900], names, 0.1, 0.1)
    after = held_out(keys, labels, names, 0.1, 0.1)[:900]
    assert np.mean(before != after) < 0.05


# ---- identity


def test_identity_is_that_of_names_and_contents_not_of_the_place(picture, write_tree, open_at, tmp_path):
    files = {f"{name}/{i}.png": picture(i, (24, 20 + i)) for name in "ab" for i in range(4)}
    one, moved = write_tree(tmp_path / "one", files), write_tree(tmp_path / "moved", files)
    first = open_at(one)["train"].identity()
    assert open_at(moved)["train"].identity() == first
    assert json.loads(json.dumps(first)) == first
    assert open_at(one, size=8)["train"].identity() != first
    (moved / "b" / "0.png").rename(moved / "a" / "9.png")
    assert open_at(moved)["train"].identity() != first


def test_classes_of_a_model(picture, write_tree, open_at, tmp_path):
    files = {f"{name}/{i}.png": picture(i) for name in "bc" for i in range(2)}
    root = write_tree(tmp_path / "set", files)
    opened = open_at(root, classes=["a", "b", "c"], valid_fraction=0, test_fraction=0)
    assert sorted(opened["train"].labels) == [1, 1, 2, 2]
    with pytest.raises(
        UserError, match=r"the class 'c' of c/0.png is not one of the model's 2 classes, such as 'a'"
    ):
        open_at(root, classes=["a", "b"])


# ---- what cannot be used


def test_nothing_there(open_at, tmp_path):
    with pytest.raises(UserError, match=r"--data .*/none: no such file or folder"):
        open_at(tmp_path / "none")


def test_a_folder_without_images(open_at, picture, write_tree, tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"--data .*/set: no pictures in it; expected a folder for each class"
    ):
        open_at(tmp_path / "set")
    write_tree(tmp_path / "set", {"1.png": picture(1)})
    with pytest.raises(UserError, match=r"its 1 pictures are in no class folder"):
        open_at(tmp_path / "set")


def test_a_file_of_another_kind(open_at, tmp_path):
    (tmp_path / "x.zip").touch()
    with pytest.raises(UserError, match=r"x.zip: expected a folder or a table \(.parquet, .csv, .jsonl\)"):
        open_at(tmp_path / "x.zip")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_without_the_columns_lists_what_it_has(photos, open_at, suffix):
    table = write_table(photos / f"list{suffix}", [{"photo": "photos/1.png", "kind": "a"}])
    with pytest.raises(UserError, match=r"it has photo, kind; name it with --image-column"):
        open_at(table)
    with pytest.raises(UserError, match=r"no column 'what'; it has photo, kind; name it with --label-column"):
        open_at(table, image_column="photo", label_column="what")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("path,label\nphotos/1.png,a\n,b\n", "row 3 has no path in the column 'path'"),
        ("path,label\nphotos/1.png,a\nphotos/2.png,\n", "photos/2.png has no label"),
        ("path,label\nphotos/1.png,a\nphotos/2.png,a\n", "only one class .'a'.; a classifier needs"),
        ("path,label\n", "there are no pictures in it"),
        ("", "it has none"),
        ('path,label\nphotos/1.png,"a', "not a readable CSV file in UTF-8"),
    ],
)  # fmt: skip
def test_bad_csv(photos, open_at, content, says):
    (photos / "list.csv").write_text(content)
    with pytest.raises(UserError, match=says):
        open_at(photos / "list.csv")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not an object with fields"),
        ('{"path": "photos/2.png", "label": 1.5}', "the label 1.5 in row 2 is not a class"),
        ('{"path": "photos/2.png", "label": ["a"]}', "the label in row 2 is a list, not a class"),
    ],
)
def test_bad_jsonl(photos, open_at, line, says):
    (photos / "list.jsonl").write_text('{"path": "photos/1.png", "label": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=says):
        open_at(photos / "list.jsonl")


def test_bad_parquet(photos, open_at):
    (photos / "x.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(UserError, match=r"x\.parquet: not a readable Parquet file"):
        open_at(photos / "x.parquet")
    write_table(photos / "x.parquet", [{"image": 3, "label": 1}])
    with pytest.raises(UserError, match=r"the column 'image' holds int64; expected paths, bytes or a struct"):
        open_at(photos / "x.parquet")


def test_a_class_only_in_validation(picture, write_tree, open_at, tmp_path):
    files = {
        f"{split}/{name}/1.png": picture(1) for split, name in (("train", "a"), ("train", "b"), ("val", "c"))
    }
    with pytest.raises(UserError, match=r"the class 'c' of val/c/1.png has no picture for training"):
        open_at(write_tree(tmp_path / "set", files))
