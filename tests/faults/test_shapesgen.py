"""`shapesgen` under faults: nothing lost, nothing silent, no traceback."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injection import Bad, Damage, bad_invocations, contents, damages, one_line

import shapesgen.preview  # noqa: F401  (imported here, so that the forked processes need not)
from shapesgen import ShapesParquet, cli
from shapesgen.choices import FORMATS, SPLITS
from shapesgen.errors import DamagedShardError
from shapesgen.verifier import verify_set
from sqrtvocab.atomic import claimed
from sqrtvocab.errors import UserError

FEW = ["--classes", "0:4", "--images-per-class", "3", "--workers", "1"]  # 12 images in 3 shards
slow = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`whole(format)`: a set of 12 images. Not to be changed. Made before any fork, so that all that is
    compiled or imported for it is there."""
    folder = tmp_path_factory.mktemp("whole")
    for form in FORMATS:
        assert cli.main(["render", "--out", str(folder / form), "--format", form, *FEW]) == 0
    return lambda form: folder / form


@pytest.fixture
def copy(whole, tmp_path: Path) -> Callable[[str], Path]:
    """`copy(format)`: such a set, to be changed."""

    def make(form: str) -> Path:
        return shutil.copytree(whole(form), tmp_path / "copy")

    return make


@pytest.fixture
def render(invoke) -> Callable[[Path, str], Any]:
    """Write a set again, or repair it."""
    return lambda out, form: invoke(cli.main, ["render", "--out", out, "--format", form, *FEW])


def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


# ---- kills and full disks ----


both = pytest.mark.parametrize("how", ["kill", "full"])


@both
@pytest.mark.parametrize(
    ("form", "every"), [("parquet", 12), *(pytest.param(form, 1, marks=slow) for form in FORMATS)]
)
def test_render_disturbed_anywhere_goes_on(how, form, every, disturb, tally, tmp_path: Path) -> None:
    folder = inside(tmp_path)
    argv = ["render", "--out", folder / "set", "--format", form, *FEW]
    tries = disturb(how, "shapesgen", cli.main, argv, folder, every=every)
    tally(f"render disturbed ({how}), {form}", tries)


@slow
@both
@pytest.mark.parametrize("form", FORMATS)
def test_a_repair_disturbed_anywhere_goes_on(how, form, disturb, whole, tally, tmp_path: Path) -> None:
    folder = inside(tmp_path)
    out = shutil.copytree(whole(form), folder / "set")
    Damage(next(out.glob("data/test-*")), "cut", 0.5).apply()
    Damage(next(out.glob("records/train-*")), "flip", 0.9).apply()
    argv = ["render", "--out", out, "--format", form, *FEW]
    tally(f"render repairing, disturbed ({how}), {form}", disturb(how, "shapesgen", cli.main, argv, folder))
    assert contents(out) == contents(whole(form))


@slow
@both
def test_overwriting_disturbed_anywhere_goes_on(how, disturb, whole, tally, tmp_path: Path) -> None:
    folder = inside(tmp_path)
    out = shutil.copytree(whole("folder"), folder / "set")
    argv = ["render", "--out", out, "--overwrite", "--seed", "5", *FEW]
    tally(f"render --overwrite disturbed ({how})", disturb(how, "shapesgen", cli.main, argv, folder))
    assert verify_set(out) == []


@slow
@both
def test_a_disturbed_preview_leaves_no_half_picture(how, disturb, tally, tmp_path: Path) -> None:
    folder = inside(tmp_path)
    argv = ["preview", "--out", folder / "sheet.png", "--class-id", "5"]
    tally(f"preview disturbed ({how})", disturb(how, "shapesgen", cli.main, argv, folder))


# ---- several at once ----


@pytest.mark.parametrize("rounds", [2, pytest.param(14, marks=slow)])
def test_parts_started_together(rounds: int, together, whole, tally, tmp_path: Path) -> None:
    for turn in range(rounds):
        form = FORMATS[turn % 3]
        out = tmp_path / f"set-{turn}"
        argv = ["render", "--out", out, "--format", form, *FEW, "--part"]
        results = together(cli.main, [[*argv, f"{part}/3"] for part in (1, 2, 3)])
        assert [(result.code, result.err) for result in results] == [(0, "")] * 3
        assert contents(out) == contents(whole(form))
    tally("parts started together", 3 * rounds)


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=slow)])
def test_the_same_render_started_three_times(rounds: int, together, whole, tally, tmp_path: Path) -> None:
    for turn in range(rounds):
        form = FORMATS[turn % 3]
        out = tmp_path / f"set-{turn}"
        argv = ["render", "--out", out, "--format", form, *FEW]
        results = together(cli.main, [argv] * 3)
        assert [(result.code, result.err) for result in results] == [(0, "")] * 3
        assert contents(out) == contents(whole(form))
    tally("the same render started together", 3 * rounds)


def test_other_settings_started_together_are_not_mixed(together, tmp_path: Path) -> None:
    out = tmp_path / "set"
    results = together(cli.main, [["render", "--out", out, *FEW, "--seed", seed] for seed in (1, 2)])
    assert sorted(result.code for result in results) == [0, 2], results
    refused = next(result for result in results if result.code == 2)
    assert "holds a set with other settings: seed is " in one_line(refused, "shapesgen")
    assert verify_set(out) == []


def test_nothing_is_overwritten_under_a_writer(copy, invoke) -> None:
    out = copy("parquet")
    whole = contents(out)
    with claimed(out / "records" / ".train-00000-of-00001.lock"):
        answer = invoke(cli.main, ["render", "--out", out, "--overwrite", *FEW])
    assert "--overwrite: another `shapesgen render` is writing to" in one_line(answer, "shapesgen")
    assert contents(out) == whole


# ---- damage ----


def kinds_of_files(out: Path) -> list[Path]:
    """One file of each kind that a set is made of."""
    found = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        found.setdefault((path.relative_to(out).parts[0], path.suffix), path)
    return list(found.values())


@pytest.mark.parametrize(
    ("form", "count"),
    [*((form, 8) for form in FORMATS), *(pytest.param(form, 150, marks=slow) for form in FORMATS)],
)
def test_damage_is_named_and_repaired(form, count, copy, invoke, render, tally) -> None:
    out = copy(form)
    whole = contents(out)
    for damage in damages(kinds_of_files(out), count, seed=count):
        before = damage.apply()
        name = damage.path.relative_to(out).as_posix()
        if damage.path.read_bytes().strip() == before.strip():  # nothing, or the newline at the end
            damage.path.write_bytes(before)
        is_harmless = name == "README.md" or contents(out) == whole
        answer = invoke(cli.main, ["verify", out])
        assert (answer.code == 0) == is_harmless, (str(damage), answer)
        assert "Traceback" not in answer.err, (str(damage), answer)
        assert is_harmless or name in answer.err, (str(damage), answer)
        answer = render(out, form)
        assert (answer.code, answer.err) == (0, ""), (str(damage), answer)
        assert contents(out) == whole, str(damage)
    tally(f"files damaged, {form}", count)


@pytest.mark.parametrize("count", [16, pytest.param(200, marks=slow)])
def test_a_reader_sees_the_right_images_or_an_error(count: int, copy, tally) -> None:
    def read() -> list[Any]:
        return [array for split in SPLITS for array in ShapesParquet(out, split).batch(range(4))]

    out = copy("parquet")
    right = read()
    for damage in damages(kinds_of_files(out), count, seed=1):
        before = damage.apply()
        error = ""
        try:
            found = read()
        except (DamagedShardError, UserError) as problem:
            error = str(problem)
        if error:
            assert damage.path.name in error, str(damage)
        else:
            for a, b in zip(found, right, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str(damage))
        damage.path.write_bytes(before)
    tally("files damaged under the loader", count)


def test_a_changed_hash_in_a_record_is_found_and_repaired(copy, render) -> None:
    out = copy("parquet")
    whole = contents(out)
    record = next(out.glob("records/train-*"))
    document = json.loads(record.read_text())
    document["pixels_sha256"] = document["pixels_sha256"][::-1]
    record.write_text(json.dumps(document) + "\n")
    [problem] = verify_set(out)
    assert problem.startswith(f"records/{record.name}: damaged")
    assert render(out, "parquet").code == 0
    assert contents(out) == whole


def unseal(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: unseal(value) for name, value in document.items() if name != "seal"}
    return [unseal(value) for value in document] if isinstance(document, list) else document


@pytest.fixture
def old(copy) -> Path:
    """A set as it was written before there were seals."""
    out = copy("parquet")
    for path in out.rglob("*.json"):
        path.write_text(json.dumps(unseal(json.loads(path.read_text()))))
    return out


def test_sets_without_seals_are_read_and_get_them(old: Path, whole, render) -> None:
    assert verify_set(old) == []
    assert len(ShapesParquet(old)) == 4
    assert render(old, "parquet").code == 0
    assert contents(old) == contents(whole("parquet"))


def test_a_manifest_leads_to_no_other_file(old: Path, tmp_path: Path) -> None:
    manifest = json.loads((old / "manifest.json").read_text())
    right = manifest["shards"][0]["file"]
    (old / right).rename(tmp_path / "elsewhere.parquet")
    for wrong in (
        "../elsewhere.parquet",
        str(tmp_path / "elsewhere.parquet"),
        "/dev/zero",
        "data",
        "",
        7,
        None,
    ):
        manifest["shards"][0]["file"] = wrong
        (old / "manifest.json").write_text(json.dumps(manifest))
        for reader in (verify_set, ShapesParquet):
            with pytest.raises(UserError, match=r"manifest\.json is damaged"):
                reader(old)


@pytest.mark.parametrize("form", FORMATS)
def test_a_device_or_a_pipe_in_place_of_a_file(form, copy, invoke, render) -> None:
    out = copy(form)
    whole = contents(out)
    for path in kinds_of_files(out):
        if path.name == "README.md":
            continue
        name = path.relative_to(out).as_posix()
        for make in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
            path.unlink()
            make(path)
            answer = invoke(cli.main, ["verify", out])
            assert answer.code in (1, 2), (name, answer)
            assert name in answer.err, (name, answer)
            answer = render(out, form)
            assert (answer.code, answer.err) == (0, ""), (name, answer)
            assert contents(out) == whole, name


def test_a_list_of_pictures_leads_to_no_other_file(copy, invoke, render, tmp_path: Path) -> None:
    out = copy("folder")
    whole = contents(out)
    (tmp_path / "secret.png").write_bytes(b"")
    path = next(out.glob("data/train-*.list"))
    right = path.read_text()
    for wrong in ("/dev/zero", "../secret.png", "train/../../secret.png", "train/000001", "", "\x00"):
        path.write_text(right.replace(right.split("\n")[1], wrong))
        answer = invoke(cli.main, ["verify", out])
        assert (answer.code, f"data/{path.name}: line 2" in answer.err) == (1, True), (wrong, answer)
        assert render(out, "folder").code == 0, wrong
        assert contents(out) == whole, wrong


DOCUMENTS: dict[str, Any] = {
    "deep": "[" * 100_000,
    "deep in an object": '{"seal": ' * 5_000,
    "almost too deep": '{"seal": "x", "a": ' + "[" * 990 + "]" * 990 + "}",
    "a list": [],
    "a number": 7,
    "nothing": None,
    "an empty object": {},
    "no text": b"\xff\xfe\x00",
    "an endless number": "9" * 5_000,
}


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        pytest.param("manifest.json", marks=slow),
        pytest.param("records/test-00000-of-00001.json", marks=slow),
    ],
)
def test_any_document_in_place_of_ours(name: str, copy, invoke, render, tally) -> None:
    out = copy("parquet")
    whole = contents(out)
    path = out / name
    for what, document in DOCUMENTS.items():
        data = document if isinstance(document, str | bytes) else json.dumps(document)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        answer = invoke(cli.main, ["verify", out])
        assert answer.code in (1, 2), (what, answer)
        assert name in answer.err, (what, answer)
        assert "Traceback" not in answer.err, (what, answer)
        answer = render(out, "parquet")
        assert (answer.code, answer.err) == (0, ""), (what, answer)
        assert contents(out) == whole, what
    tally("documents of another kind", len(DOCUMENTS))


def test_any_type_in_place_of_a_setting(old: Path, tally) -> None:
    config = json.loads((old / "config.json").read_text())
    wrong = [None, True, -1, 1.0, 1e300, "", "x", [], [1, "a"], [0.0, 4.0], {}, {"shape": 3}, 10**30]
    for setting in config:
        for value in wrong:
            (old / "config.json").write_text(json.dumps({**config, setting: value}))
            with pytest.raises(UserError, match=r"config\.json is damaged"):
                verify_set(old)
    tally("settings of another type", len(config) * len(wrong))


# ---- bad invocations ----

# Each command with words that make it succeed.
BASES: dict[type, list[str]] = {
    cli.Render: ["--out", "OUT", *FEW],
    cli.Verify: ["SET", "--workers", "1"],
    cli.Describe: ["7"],
    cli.Ceiling: ["--only", "shape=circle", "--only", "pattern=solid", "--only", "colour=red"],
    cli.Preview: ["--out", "OUT.png"],
}


def test_no_command_is_left_out() -> None:
    assert set(BASES) == set(cli.COMMANDS.values())


def invocations(folder: Path, a_set: Path) -> Iterator[tuple[list[str], Bad]]:
    for number, (config, base) in enumerate(BASES.items()):
        words = [
            word.replace("OUT", str(folder / f"out-{number}")).replace("SET", str(a_set)) for word in base
        ]
        for bad in bad_invocations(config, folder / "paths"):
            rest = list(words)
            if bad.flag in rest:
                at = rest.index(bad.flag)
                del rest[at : at + 2]
            elif not bad.flag:
                del rest[0]
            yield [config.__name__.lower(), *rest, *bad.argv], bad


@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=slow)])
def test_bad_invocations(share: float, whole, invoke, tally, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    every = list(invocations(tmp_path / "there", whole("parquet")))
    chosen = random.Random(0).sample(every, int(share * len(every)))
    for argv, bad in chosen:
        answer = invoke(cli.main, argv)
        assert not bad.certain or answer.code == 2, (argv, answer)
        if answer.code:
            line = one_line(answer, "shapesgen")
            assert answer.code == 2, (argv, answer)
            assert not bad.certain or bad.flag in line, (argv, answer)
        shutil.rmtree(tmp_path / "there", ignore_errors=True)
        list(bad_invocations(cli.Verify, tmp_path / "there" / "paths"))  # makes the paths again
    tally("bad invocations of shapesgen", len(chosen))


# ---- standard streams ----

STREAMS = [
    ("describe 5 >/dev/full", 1, "No space left on device\n"),
    ("--help >/dev/full", 1, "No space left on device\n"),
    ("describe 5 >&-", 1, "Bad file descriptor\n"),
    ("--help >&-", 1, "Bad file descriptor\n"),
    ("describe $(seq 2000) | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}", 141, ""),
    ("render --help | true; exit ${PIPESTATUS[0]}", None, ""),
    ("describe 5 2>&-", 0, ""),
    ("describe x 2>&-", 2, ""),
    ("describe x 2>/dev/full", 2, ""),
    ("describe x >&- 2>&-", 2, ""),
    ("verify /nowhere 2>/dev/full", 2, ""),
    ("describe 5 <&-", 0, ""),
]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [case if i in (0, 4) else pytest.param(*case, marks=slow) for i, case in enumerate(STREAMS)],
)
def test_standard_streams_that_are_full_or_closed(words: str, code: int | None, says: str, tally) -> None:
    run = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m shapesgen.cli {words}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == code or (code is None and run.returncode in (0, 141)), run
    assert run.stderr.endswith(says), run
    assert run.stderr.startswith("shapesgen: " if says else ""), run
    assert run.stderr.count("\n") == bool(says), run
    tally("standard streams full or closed", 1)


@slow
@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "ascii:strict"},
    ],
)
def test_any_locale(env: dict[str, str], tmp_path: Path) -> None:
    name = tmp_path / "gruß-\udcff"
    for words in (
        ["--help"],
        ["render", "--help"],
        ["render", "--out", str(name), *FEW],
        ["verify", str(name)],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "shapesgen.cli", *words],
            capture_output=True,
            env=os.environ | env,
            timeout=60,
        )
        assert (run.returncode, run.stderr) == (0, b""), run
        assert run.stdout
