"""The scripts that make the paper's tables and figures run, write what they say and refuse bad flags."""

import csv
import sys
from pathlib import Path

import pytest
from PIL import Image

from lm.stories.write import stories
from lm.text.tokenizer import END
from scripts import figure_ablation, table2_memory
from scripts.common.command import command_line, make_folder, shown_path
from scripts.common.lm_models import FUSED_GELU, MODELS
from scripts.common.paper_memory import CASES, SIZES
from scripts.reports.ablation import draw
from scripts.reports.memory_page import pages, standing

ROOT = Path(__file__).parents[2]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_table2(call, tmp_path):
    result = call("table2_memory", "--quick", "--gpu", "t4", "h100", "--out", tmp_path / "results")
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "results" / "memory.csv")
    peaks = {(row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows}
    for row in rows:
        parts = [int(value) for key, value in row.items() if key.endswith("_bytes") and key != "peak_bytes"]
        assert len(parts) == 5
        assert sum(parts) == int(row["peak_bytes"])
    for setting in ("paper", "eager", "fp32", "half", "best"):
        assert peaks[setting, "tiny", "GPT-2"] > peaks[setting, "tiny", "grouped"]
    # The copy of the logits, and the copy that is kept: 2 x 32 tokens of 2,000 floats each.
    assert peaks["paper", "tiny", "GPT-2"] > peaks["fp32", "tiny", "GPT-2"] + 0.9 * 4 * 2 * 32 * 2000
    assert peaks["eager", "tiny", "grouped"] > peaks["fp32", "tiny", "grouped"]
    assert peaks["best", "tiny", "grouped"] < peaks["half", "tiny", "grouped"]
    page = (tmp_path / "results" / "memory.md").read_text()
    assert "Against the paper's figures" not in page  # these are other shapes
    assert "paper / here" not in page
    assert "table2_memory.py --quick" in page
    assert "| H100 80 GB | tiny |" in page
    assert 10_000 < (tmp_path / "results" / "memory.png").stat().st_size < 300_000


def test_quick_results_have_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_folder(None) == Path("docs/results")
    assert make_folder(None, quick=True) == Path("runs/quick")
    assert make_folder(tmp_path / "x", quick=True) == tmp_path / "x"


def test_commands_on_pages_do_not_tell_where_folders_lie(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "tinystories").mkdir()
    words = [here / "runs" / "a", tmp_path / "b", "--data", "../tinystories", "--out", here / "x.png"]
    words += [f"--data={tmp_path / 'text'}", "../c", "d/e", "--only", "shape=circle,star", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/scripts/draw.py", *map(str, words)])
    shown = "runs/a b --data tinystories/ --out x.png --data=text c d/e --only shape=circle,star --steps 3"
    assert command_line() == f"```bash\npython scripts/draw.py {shown}\n```"
    assert shown_path("d/e") == "d/e"


def test_memory_against_the_paper():
    """Reserved memory includes what is allocated: more of it refutes, less does not explain."""
    assert standing(14.0, 14.45, "GPT-2") == "near"  # the paper prints whole numbers
    assert standing(14.0, 14.55, "GPT-2") == "above"
    assert standing(16.6, 16.66, "grouped") == "above"
    assert standing(16.6, 16.0, "grouped") == "near"
    assert standing(16.6, 15.6, "grouped") == "below"


def test_memory_page_from_made_up_rows():
    """Every figure in the prose comes from the rows."""
    sizes = {"8.1 M": 1, "19.3 M": 2, "152 M": 3, "507 M": 4, "659 M": 5}
    rows = [
        {
            "setting": key, "size": size, "model": model, "million_parameters": 10 * number,
            "peak_bytes": (number + index) * 2**30, "logits_bytes": number * 2**29,
        }
        for key in CASES
        for size, number in sizes.items()
        for index, model in enumerate((*MODELS, *FUSED_GELU))
    ]  # fmt: skip
    peaks = {("8.1 M", "GPT-2"): 14, ("8.1 M", "GPT-Neo"): 15, ("659 M", "GPT-2"): 47}
    for row in rows:
        if row["setting"] == "paper" and (row["size"], row["model"]) in peaks:
            row["peak_bytes"] = peaks[row["size"], row["model"]] * 2**30
    page = "\n".join(pages(rows, SIZES, table2_memory.Config().gpu))
    assert "which makes 40 M parameters; with 11 layers there are 50 M" in page
    assert "- above: refuted: GPT-Neo at 8.1 M, 15.0 against 13." in page
    assert "T4, 8.1 M, GPT-Neo: paper 13, here oom (15.0); only 0.75 GiB too much, and it fits" in page
    assert "L40S, 659 M, GPT-2: paper oom, here 5.0; 89 % less than under `paper`." in page
    assert "T4, 8.1 M, GPT-2: paper oom, here 14.0; only 0.25 GiB are left" in page
    assert "too much, and it fits under `eager` (2.0), `fp32` (2.0)" in page
    assert "- near: at most 5 % below the paper's, or above by less than its rounding: GPT-2 at 8.1 M" in page
    assert "Logits and what is made of them at 8.1 M: 0.5 of GPT-2's 14.0" in page


def test_table3_counts_and_keeps_what_it_does_not_measure(call, tmp_path):
    path = tmp_path / "throughput_flops.csv"
    timed = "tokens_per_s,batch_size,device,threads,repeats,machine"
    models = ("GPT-2", "GPT-Neo", "grouped", "grouped-linear")
    lines = [f"tiny,{model},16,2000,123.0,2,cpu,1,1,M" for model in models]  # as if timed before
    lines.append("8.1 M,GPT-2,128,50257,77.0,4,cpu,1,1,M")  # of another shape
    path.write_text("\n".join([f"size,model,hidden,vocab,{timed}", *lines]) + "\n")
    result = call("table3_throughput_flops", "--quick", "--only", "flops", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    (other,) = [row for row in rows_of(path) if row["size"] == "8.1 M"]
    rows = [row for row in rows_of(path) if row["size"] != "8.1 M"]
    assert (other["hidden"], other["tokens_per_s"]) == ("128", "77.0")
    assert len(rows) == 2 * len(models)
    assert rows[0]["model"] == "GPT-2"
    assert int(rows[0]["multiply_adds"]) == 32 * (2 * 12 * 16**2 + 16 * 2000)  # tokens x (blocks and head)
    assert int(rows[0]["forward_flops"]) == 2 * int(rows[0]["multiply_adds"]) + 2 * 2 * 2 * 32 * 32 * 16
    assert [row["tokens_per_s"] for row in rows] == 4 * ["123.0"] + 4 * [""]
    page = (tmp_path / "throughput_flops.md").read_text()
    assert "on cpu (M)" in page
    assert "paper / here" not in page  # these are other shapes
    assert str(tmp_path) not in page


@pytest.mark.slow
def test_table3_throughput(call, tmp_path):
    flags = ("--quick", "--only", "throughput", "--repeats", 1, "--out", tmp_path)
    result = call("table3_throughput_flops", *flags)
    assert result.returncode == 0, result.stderr
    assert all(float(row["tokens_per_s"]) > 0 for row in rows_of(tmp_path / "throughput_flops.csv"))
    assert "## Throughput" in (tmp_path / "throughput_flops.md").read_text()


def test_ablation_memory(call, tmp_path):
    small, other = (f"V={v} hidden=16 layers=2 batch=2x32 fp32" for v in (2000, 9000))
    lines = ["groups,peak_bytes,memory_settings", f"1,7000000,{small}", f"7,5,{other}", f"8000,6,{other}"]
    (tmp_path / "ablation.csv").write_text("\n".join(lines) + "\n")
    result = call("figure_ablation", "--only", "memory", "--quick", "--points", 4, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    found = rows_of(tmp_path / "ablation.csv")
    assert [row["groups"] for row in found if row["memory_settings"] == other] == ["7", "8000"]  # they stay
    rows = [row for row in found if row["memory_settings"] == small]
    assert [int(row["groups"]) for row in rows] == [1, 7, 44, 299, 2000]  # √2000 = 44.7
    assert int(rows[2]["head_parameters"]) == 44 * 17 + 46 * 16 + 2 * 44 * 46  # W_g, W_s, P and Q
    peaks = [int(row["peak_bytes"]) for row in rows]
    assert peaks[0] == 7_000_000  # the record is believed
    assert peaks.index(min(peaks)) in (1, 2, 3)
    assert 5_000 < (tmp_path / "ablation.png").stat().st_size < 300_000
    page = (tmp_path / "ablation.md").read_text()
    assert "Least memory at G = " in page
    assert "8,000" not in page  # of other settings
    assert str(tmp_path) not in page


@pytest.mark.parametrize(
    ("script", "name"),
    [("figure_ablation", "ablation.csv"), ("table3_throughput_flops", "throughput_flops.csv")],
)
def test_another_file_in_the_place_of_the_record(call, tmp_path, script, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    flags = ("--only", "memory") if script == "figure_ablation" else ("--only", "flops")
    result = call(script, *flags, "--quick", "--out", tmp_path)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert f"{tmp_path / name}: not a record of this script" in result.stderr
    assert (tmp_path / name).read_text() == "a,b\n1,2\n"


def test_a_record_that_is_no_text(call, tmp_path):
    (tmp_path / "ablation.csv").write_bytes(b"groups,memory_settings\n\xff\xfe,1\n")
    result = call("figure_ablation", "--only", "memory", "--quick", "--out", tmp_path)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert f"{tmp_path / 'ablation.csv'}: not a record of this script: 'utf-8' codec" in result.stderr


@pytest.mark.parametrize("least", [1, 2, 2000])
def test_the_label_of_the_least_lies_within_its_panel(call, least):
    """At the edges, too, where it would cover the figures of the axis."""
    rows = [{"groups": g, "loss": abs(g - least) / 1000 + 5, "peak_bytes": ""} for g in (1, 2, 44, 2000)]
    figure = draw(rows, figure_ablation.Config(quick=True).shape())
    figure.draw_without_rendering()
    (panel,) = figure.axes
    (label,) = [text for text in panel.texts if text.get_text().startswith("least")]
    box, frame = label.get_window_extent(), panel.get_window_extent()
    assert frame.x0 <= box.x0
    assert box.x1 <= frame.x1


@pytest.mark.slow
def test_ablation_quick(call, tmp_path):
    flags = ("--quick", "--points", 2, "--threads", 1, "--runs", tmp_path / "runs", "--out", tmp_path)
    result = call("figure_ablation", *flags)
    assert result.returncode == 0, result.stderr
    losses = {row["contender"]: float(row["loss"]) for row in rows_of(tmp_path / "ablation_loss.csv")}
    assert list(losses) == ["groups-1", "groups-44", "groups-2000"]
    assert all(6 < loss < 9 for loss in losses.values())  # log V = 7.6
    page = (tmp_path / "ablation.md").read_text()
    assert all(f"| {loss:.3f} |" in page for loss in losses.values())


@pytest.mark.slow
def test_ablation_loss(call, tmp_path):
    text = tmp_path / "stories.txt"
    text.write_text(END.join(stories("train", 60)))
    flags = ["--only", "loss", "--data", text, "--batch-size", 1, "--seq-len", 32]
    flags += ["--threads", 1, "--runs", tmp_path / "runs", "--out", tmp_path]
    for steps, groups in ((2, 224), (3, 224), (3, 600)):  # in parts, the first with other settings
        result = call("figure_ablation", *flags, "--steps", steps, "--groups", groups)
        assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path / "ablation_loss.csv")
    assert [(row["contender"], row["steps"]) for row in rows] == [
        ("groups-224", "2"),
        ("groups-224", "3"),
        ("groups-600", "3"),
    ]
    assert all(9 < float(row["loss"]) < 13 for row in rows)  # log V = 10.8: nothing learnt in two steps
    assert len(list((tmp_path / "runs").iterdir())) == 3
    page = (tmp_path / "ablation.md").read_text()
    assert f"| **224** (√V) |  |  | {float(rows[1]['loss']):.3f} |" in page
    assert f"| 600 |  |  | {float(rows[2]['loss']):.3f} |" in page
    assert str(tmp_path) not in page


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("table2_memory", ("--gpu",), "--gpu: name at least one"),
        ("table2_memory", ("--out", "/proc/x"), "--out /proc/x"),
        ("table3_throughput_flops", ("--repeats", 0), "--repeats must be at least 1"),
        ("table2_memory", ("--gpu", "t5"), "--gpu"),
        ("figure_ablation", ("--only", "memory", "--groups", 0), "--groups must lie between 1 and V = 50257"),
        ("figure_ablation", ("--steps", 0), "--steps must be at least 1"),
        ("figure_ablation", ("--only", "memory", "--seed", -1), "--seed must not be negative"),
        ("table2_memory", ("--gpu", "h100"), "--gpu: without the paper's t4, a10g, l40s"),
        ("figure_ablation", ("--data", "auto"), "--data: name the text to train on"),
        ("bench_classifier", ("--bogus",), "Unrecognized options: --bogus"),
        ("bench_render", ("--bogus",), "Unrecognized options: --bogus"),
        ("demo", ("--bogus",), "Unrecognized options: --bogus"),
    ],
)
def test_bad_flags(call, script, arguments, message):
    result = call(script, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_figures_can_be_drawn_again_from_their_tables(call, tmp_path):
    """As they are in docs/results, but for fonts and versions of matplotlib."""
    result = call("redraw_figures", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as drawn, Image.open(ROOT / "docs" / "results" / path.name) as kept:
            assert drawn.size == kept.size, path.name
            assert drawn.width <= 1.5 * 830  # GitHub shows 830 pixels: more would make the words small
