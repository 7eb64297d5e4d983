"""The `shapesgen` command: every subcommand as a process, and one line for every mistake."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shapesgen.cli import main

FEW = ["--only", "shape=star", "--only", "colour=red,blue", "--only", "opacity=1", "--only", "size=tiny"]


def shapesgen(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "shapesgen.cli", *arguments], capture_output=True, text=True)


def test_render_verify_preview_and_repair_as_processes(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "set")
    run = shapesgen("render", "--out", out, "--images-per-class", "3", *FEW)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("576 images, ")
    assert "bytes an image" in run.stdout
    run = shapesgen("verify", out, "--workers", "2")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "576 images in 3 shards: all as in the manifest\n"
    run = shapesgen("preview", "--out", str(tmp_path / "sheet.png"), "--dir", out)
    assert run.returncode == 0, run.stderr
    assert Image.open(tmp_path / "sheet.png").width > 1000

    shard = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run = shapesgen("verify", out)
    assert run.returncode == 1
    damage, advice = run.stderr.splitlines()
    assert damage.startswith("data/train-00000-of-00001.parquet: ")
    assert "1 of 3 shards, or their records, are damaged; `shapesgen render --out" in advice
    assert main(["preview", "--out", str(tmp_path / "sheet.png"), "--dir", out]) == 1
    assert "train-00000-of-00001" in capsys.readouterr().err
    run = shapesgen("render", "--out", out, "--images-per-class", "3", *FEW)
    assert run.returncode == 0
    assert "(384 were there already)" in run.stdout
    assert main(["verify", out]) == 0


def test_ceiling_as_a_process() -> None:
    run = shapesgen("ceiling", "--rotation-cue", "none", "--only", "shape=circle", "--only", "pattern=solid")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "5,760 classes, 1,920 of them distinct"  # one look with a solid border, three dashed
    assert lines[1].split() == ["highest", "accuracy", "33.33%"]
    assert lines[4].split() == ["rotation", "33.33%"]
    assert len(lines) == 10


def test_describe_both_ways_as_processes() -> None:
    run = shapesgen("describe", "123456")
    assert run.stdout == (
        "123456: shape=octagon pattern=striped rotation=120 colour=brown size=small texture=none "
        "opacity=0.25 border=solid\n"
    )
    flags = [
        word for pair in run.stdout.split()[1:] for word in ("--" + pair.split("=")[0], pair.split("=")[1])
    ]
    run = shapesgen("describe", *flags)
    assert (run.returncode, run.stdout) == (0, "123456\n")


def test_help_and_describe_load_neither_numba_nor_torch() -> None:
    code = (
        "import sys; from shapesgen.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join(m for m in ('numba', 'torch', 'pyarrow', 'PIL') if m in sys.modules) or None)"
    )
    for arguments in (["--help"], ["render", "--help"], ["describe", "5"]):
        run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, ""), run.stderr
        assert run.stdout


def test_preview_of_shapes_and_of_classes(tmp_path: Path, capsys) -> None:
    sheet = tmp_path / "sheet.png"
    assert main(["preview", "--out", str(sheet)]) == 0
    pixels = np.asarray(Image.open(sheet))
    assert pixels.shape[0] > 8 * 100
    assert pixels.shape[1] > 10 * 100
    assert (pixels < 255).any(-1).mean() > 0.1
    assert main(["preview", "--out", str(sheet), "--class-id", "7", "--class-id", "184319"]) == 0
    assert Image.open(sheet).height < 500
    assert main(["preview", "--out", str(sheet), *FEW]) == 0
    assert capsys.readouterr().err == ""


def test_describe_in_a_sub_space(capsys) -> None:
    assert main(["describe", "1", "--only", "shape=star", "--only", "border=dashed"]) == 0
    assert capsys.readouterr().out.startswith("1 (full id 138243): shape=star pattern=solid")


def test_classes_and_random_sampling(tmp_path: Path, capsys) -> None:
    arguments = ["render", "--out", str(tmp_path / "set"), "--classes", "50:90", "--sampling", "random"]
    assert main([*arguments, "--workers", "1"]) == 0
    assert main(["verify", str(tmp_path / "set"), "--workers", "1"]) == 0
    assert "400 images in 3 shards" in capsys.readouterr().out


def test_preview_writes_what_a_link_leads_to_or_says_why_not(tmp_path: Path, capsys) -> None:
    for name, target in (("link", "sheet"), ("loop", "loop"), ("dangling", "gone/sheet")):
        (tmp_path / f"{name}.png").symlink_to(f"{target}.png")
    (tmp_path / "folder.png").mkdir()
    assert main(["preview", "--out", str(tmp_path / "link.png"), "--class-id", "3"]) == 0
    assert Image.open(tmp_path / "sheet.png").width > 1000
    assert (tmp_path / "link.png").is_symlink()
    capsys.readouterr()
    for name, reason in (
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "No such file or directory"),
        ("folder", "Is a directory"),
        ("x" * 300, "File name too long"),
    ):
        assert main(["preview", "--out", str(tmp_path / f"{name}.png"), "--class-id", "3"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"shapesgen: --out {tmp_path}")
        assert reason in line
    assert not list(tmp_path.glob(".*"))


def test_a_part_says_what_is_still_to_come(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "set")
    assert main(["render", "--out", out, "--classes", "0:10", "--part", "2/3", "--workers", "1"]) == 0
    assert "2 of 3 shards are still to come from other parts" in capsys.readouterr().out
    assert main(["verify", out]) == 2
    assert "is not finished: 1 of 3 shards" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("render", "Missing from shapesgen render: --out DIR"),
        ("render --out OUT --seed x", "--seed"),
        ("render --out OUT --seed -1", "--seed must be 0..2^63 - 1, got -1"),
        ("render --out OUT --frobnicate", "--frobnicate"),
        ("render --out OUT --format zip", "'parquet', 'webdataset', 'folder'"),
        ("render --out OUT --format folder", "--format folder would make 1,843,200 files"),
        ("render --out OUT --part 3/2", "--part must be I/N with 1 <= I <= N, got 3/2"),
        ("render --out OUT --part 0/2", "--part must be I/N with 1 <= I <= N, got 0/2"),
        ("render --out OUT --part two", "--part must be I/N, got 'two'"),
        ("render --out OUT --part 1/2 --overwrite", "--overwrite would delete"),
        ("render --out OUT --classes 9:5", "--classes must be A:B with 0 <= A < B <= 184320, got 9:5"),
        ("render --out OUT --classes 0:999999", "--classes must be A:B"),
        ("render --out OUT --classes 5", "--classes must be A:B, got '5'"),
        ("render --out OUT --images-per-class 0", "--images-per-class must be 1..16384, got 0"),
        ("render --out OUT --workers 0", "--workers must be 1..1024, got 0"),
        ("render --out OUT --only color=red", "--only: unknown attribute 'color' (did you mean 'colour'?)"),
        (
            "render --out OUT --only shape=sqare",
            "--only: unknown shape 'sqare' (did you mean 'square'?); valid:",
        ),
        ("render --out OUT --only shape", "--only: expected ATTRIBUTE=OPTION,... got 'shape'"),
        ("render --out /proc/none", "--out /proc/none: "),
        ("verify OUT", "holds no image set"),
        ("describe 184320", "class id must be 0..184319, got 184320"),
        ("describe", "either class ids or the eight attributes"),
        ("describe 5 --shape star", "either class ids or the eight attributes"),
        ("describe --shape star", "missing: pattern, rotation"),
        ("describe --shape heart", "missing: pattern"),
        ("preview --out OUT.png --class-id 999999", "--class-id: class id must be 0..184319"),
        ("preview --out OUT.png --dir OUT", "holds no image set"),
        ("preview --out OUT.png --dir OUT --class-id 4", "--dir shows a folder as it is"),
        (
            "preview --out OUT.png --class-id 99999999999999999999",
            "--class-id: class ids must be integers below",
        ),
        ("preview --out OUT.xyz", "not a kind of picture that can be written; use .png"),
        ("preview --out OUT.psd", "not a kind of picture that can be written; use .png"),
        ("preview --out OUT/none/sheet.png", "--out"),
        ("preview --out /dev/null/sheet.png", "--out /dev/null/sheet.png: Not a directory"),
        ("render --out OUT --classes 0:2 --images-per-class 16384 --sampling random", "--sampling random: "),
        ("render --out OUT --workers 1000000", "--workers must be 1..1024, got 1000000"),
        ("ceiling --only size=gigantic", "--only: unknown size 'gigantic'"),
        ("paint", "paint"),
        ("", "Expected one of {render, verify, preview, describe, ceiling}"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: str, message: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert main(arguments.replace("OUT", str(out)).split()) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert errors.startswith("shapesgen: ")
    assert message in errors
    assert not out.exists()
