"""The comparison of heads: its record, its numbers, and both experiments on tiny settings."""

import csv
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading

import pytest
import torch
import tyro
from PIL import Image

from scripts import compare_heads as compare
from scripts.common import runs
from scripts.common.command import values_of
from scripts.common.contenders import COMPARISONS, LM
from scripts.common.jobs import (
    KEY,
    Contender,
    Data,
    Job,
    by_definition,
    ending_loss,
    record_of_runs,
    run_name,
    seconds_per_step,
    with_steps,
)
from scripts.common.means import Mean, paired
from scripts.common.pages import write_figure
from scripts.reports.heads_figure import draw, front, ticks
from scripts.reports.heads_page import document, rate_tables
from scripts.reports.heads_rows import best_rates, families_of, sections, timed_rows, trained_on
from sqrtvocab import HEADS, FlatHead
from sqrtvocab.errors import UserError, exit_code

FLAGS = {
    "grouped-linear": "--head grouped-linear --no-tie-embeddings --grouping frequency --prior",
    "grouped": "--head grouped --modulation scale-shift --no-tie-embeddings --grouping index --no-prior",
    "adaptive": "--head adaptive --no-tie-embeddings --grouping frequency --prior",
    "flat-chunked": "--head flat --chunk-size 256 --no-tie-embeddings --grouping frequency --prior",
}
SETTINGS = "--data text/ --hidden-size 16 --max-steps 10"


def row(contender, seed, loss, seconds, **other):
    """A row of a record, made by hand."""
    values = {
        "contender": contender, "seed": seed, "settings": SETTINGS, "flags": FLAGS[contender],
        "data_bytes": 1000, "loss": loss, "bits_per_byte": loss / 3, "accuracy": 0.25, "group_accuracy": 0.5,
        "seconds": seconds, "seconds_per_step": seconds / 10, "peak_gib": 1.5, "parameters": 1_234_567,
        "head_parameters": 4_321, "steps": 10, "items": 40_960, "training_items": 999_999, "threads": 2,
        "torch": "2.15.0", "machine": "a processor, 2 cores",
    }  # fmt: skip
    return {name: str(value) for name, value in {**values, **other}.items()}


LOSSES = {"flat-chunked": (4.0, 4.1, 4.3), "grouped-linear": (3.9, 4.05, 4.1), "grouped": (5.0,)}
SECONDS = {"flat-chunked": 800.0, "grouped-linear": 100.0, "grouped": 120.0}
ROWS = [row(name, seed, loss, SECONDS[name]) for name in LOSSES for seed, loss in enumerate(LOSSES[name])]


def keep(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


# ---- numbers ----


def test_the_interval_is_students():
    """For three values t(0.975, 2) = 4.303, for two 12.706: from the tables."""
    mean = Mean.of([1.0, 2.0, 4.0])
    assert mean.value == pytest.approx(7 / 3)
    assert mean.half == pytest.approx(4.302653 * statistics.stdev([1, 2, 4]) / math.sqrt(3), rel=1e-6)
    two = Mean.of([1.0, 2.0])
    assert two.half == pytest.approx(12.7062 * 0.5, rel=1e-4)
    assert Mean.of([3.0]).half is None
    assert Mean.of([3.0]).show(2) == "3.00"
    assert two.show(1, "+") == "+1.5 ± 6.4"


def test_differences_are_paired_by_seed():
    mean = paired({"0": 1.0, "1": 2.0, "7": 9.0}, {"1": 1.5, "0": 0.0})
    assert (mean.value, mean.n) == (0.75, 2)
    assert paired({"0": 1.0}, {"1": 1.0}) is None


def test_the_pareto_front():
    points = {"slow": (9.0, 1.0), "fast": (1.0, 3.0), "middle": (3.0, 2.0), "beaten": (4.0, 2.5)}
    points["as slow, worse"] = (9.0, 1.5)
    assert front(points) == ["fast", "middle", "slow"]


# ---- table and figure ----


def test_table_and_figure_of_a_record(call, tmp_path):
    keep(tmp_path / "heads_lm.csv", ROWS)
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "heads_lm.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["grouped-linear", "flat-chunked", "grouped"]  # by loss
    cells = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    half = 4.302653 * statistics.stdev(LOSSES["grouped-linear"]) / math.sqrt(3)
    gaps = [ours - flat for ours, flat in zip(LOSSES["grouped-linear"], LOSSES["flat-chunked"], strict=True)]
    gap = 4.302653 * statistics.stdev(gaps) / math.sqrt(3)
    assert cells[2:5] == ["3", f"4.017 ± {half:.3f}", f"−0.117 ± {gap:.3f}"]
    assert cells[6:] == ["25.0 ± 0.0 %", "100", "10.00", "1.50", "1,234,567", "4,321"]
    assert "| 1 | 5.000 | +1.000 |" in lines[2]  # one seed: no interval
    assert "## 10 steps of 4,096 tokens, hidden 16\n" in page
    assert f'settings="{SETTINGS}"\n' in page
    assert f"train_lm $settings {FLAGS['flat-chunked']}  # flat-chunked\n" in page
    assert f"`grouped-linear` less `flat-chunked` −0.117 ± {gap:.3f} (n = 3)" in page
    assert "seconds are left out" not in page
    assert "older definition" not in page
    with Image.open(tmp_path / "heads_lm.png") as figure:
        assert figure.width > 800


def test_seconds_of_other_machines_and_threads_are_not_mixed(call, tmp_path):
    rows = [*ROWS, row("grouped", 1, 5.2, 9999.0, threads=1), row("adaptive", 0, 4.5, 1.0, machine="another")]
    keep(tmp_path / "heads_lm.csv", rows)
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "heads_lm.md").read_text()
    cells = {
        line.split("`")[1]: [cell.strip() for cell in line.split("|")] for line in page.splitlines()
        if line.startswith("| `")
    }  # fmt: skip
    assert cells["grouped"][4].startswith("5.100 ±")  # losses do mix
    assert cells["grouped"][8] == "120"
    assert cells["adaptive"][8] == ""
    assert "seconds are left out" in page
    ((place, entries),) = sections(rows, {}).values()
    assert place == ("a processor, 2 cores", "2", "2.15.0")
    assert [entry.name for entry in entries if not entry.timed] == ["adaptive"]


def test_seconds_beside_other_work_are_left_out(call, tmp_path):
    busy = [
        row(name, 0, 4.0, 5000.0, machine="a processor, 2 cores, shared") for name in ("grouped", "adaptive")
    ]
    place, timed = timed_rows([*busy, ROWS[0]])
    assert (place[0], timed) == ("a processor, 2 cores", [ROWS[0]])
    assert timed_rows(busy)[1] == []
    keep(tmp_path / "heads_lm.csv", busy)  # no seconds at all
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "5,000" not in (tmp_path / "heads_lm.md").read_text()


def test_rows_of_an_older_definition_are_left_out(call, tmp_path):
    """A contender that was changed, or is no more, must not be shown under today's title."""
    old = [row("grouped", 1, 1.0, 1.0, flags="--head grouped"), {**ROWS[0], "contender": "forgotten"}]
    keep(tmp_path / "heads_lm.csv", [*ROWS, *old])
    assert call("compare_heads", "lm", "--redraw", "--out", tmp_path).returncode == 0
    page = (tmp_path / "heads_lm.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["grouped-linear", "flat-chunked", "grouped"]
    assert "| 1 | 5.000 | +1.000 |" in lines[2]
    older = f"older definition: `forgotten` (`{ROWS[0]['flags']}`), `grouped` (`--head grouped`)."
    assert older in page
    keep(tmp_path / "heads_lm.csv", old)
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "older contenders" in result.stderr


def test_other_settings_are_another_section(call, tmp_path):
    longer = SETTINGS.replace("10", "20")
    keep(tmp_path / "heads_lm.csv", [*ROWS, row("flat-chunked", 0, 3.0, 1700.0, settings=longer, steps=20)])
    assert call("compare_heads", "lm", "--redraw", "--out", tmp_path).returncode == 0
    page = (tmp_path / "heads_lm.md").read_text()
    assert page.index("## 10 steps of 4,096 tokens") < page.index("## 20 steps of 2,048 tokens")


def at_rate(rate, name, losses):
    settings = f"{SETTINGS} --lr {rate} --schedule cosine"
    return [row(name, seed, loss, 10.0, settings=settings) for seed, loss in enumerate(losses)]


def test_each_head_at_its_best_learning_rate():
    comparison = COMPARISONS["lm"]
    flat = at_rate("0.001", "flat-chunked", (4.0, 4.2)) + at_rate("0.002", "flat-chunked", (4.1, 4.3))
    ours = at_rate("0.001", "grouped-linear", (4.1, 4.3)) + at_rate("0.002", "grouped-linear", (3.9, 3.9))
    once = at_rate("0.001", "grouped", (1.0,))  # at one rate only: nothing to choose from
    ((title, (about, _, table)),) = rate_tables(flat + ours + once, comparison).items()
    assert title == "10 steps of 4,096 tokens, hidden 16"
    assert about.startswith("By the mean loss over the seeds")
    # Student's t for two values is 12.706: the losses differ by 0.2, the gaps by 0.1 and 0.3.
    assert table.splitlines()[2:] == [
        "| `grouped-linear` | 0.002 | 0.001, 0.002 | 2 | 3.900 ± 0.000 | −0.200 ± 1.271 (n = 2) |",
        "| `flat-chunked` | 0.001 | 0.001, 0.002 | 2 | 4.100 ± 1.271 |  |",
    ]
    assert rate_tables(flat + ours[:2], comparison) == {}  # only the flat head has several
    other = [{**each, "data_bytes": "7"} for each in ours[2:]]  # of another text
    assert rate_tables(flat + ours[:2] + other, comparison) == {}
    page = document(flat + ours, comparison, "figure.png")
    assert f"## Each at its best learning rate: {title}\n" in page
    assert all(f"## {title}, learning rate {rate}\n" in page for rate in ("0.001", "0.002"))
    assert "best learning rate" not in document(flat, comparison, "figure.png")


def test_rates_are_chosen_by_training_text_that_was_new():
    """Not by the validation text, which gives the score, unless rows are older or read a text twice."""
    rows = at_rate("0.001", "grouped", (4.0,)) + at_rate("0.002", "grouped", (4.1,))
    told = [{**each, "training_loss": loss} for each, loss in zip(rows, ("3.9", "3.8"), strict=True)]
    assert best_rates(rows) == {"grouped": "0.001"}
    assert best_rates(told) == {"grouped": "0.002"}
    assert best_rates([told[0], {**told[1], "training_loss": ""}]) == {"grouped": "0.001"}
    assert best_rates([{**each, "training_items": "40959"} for each in told]) == {"grouped": "0.001"}


def test_the_training_loss_of_the_last_tenth_of_the_steps(tmp_path):
    lines = [
        {"step": 50, "loss/train": 9.0},
        {"step": 92, "loss/train": 5.0},  # two of its steps belong to the last tenth
        {"step": 96, "loss/validation": 1.0},
        {"step": 100, "loss/train": 2.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert ending_loss(tmp_path) == pytest.approx((2 * 5.0 + 8 * 2.0) / 10)


def test_plain_flat_stands_in_for_its_chunked_form():
    """They have the same loss: where only one was trained, the others are compared with that."""
    flat = {**row("flat-chunked", 0, 4.0, 10.0), "contender": "flat", "flags": LM["flat"].flags}
    rows = [flat, row("grouped-linear", 0, 3.9, 5.0)]
    page = document(rows, COMPARISONS["lm"], "figure.png")
    assert "| less `flat` |" in page
    assert "`grouped-linear` less `flat` −0.100 (n = 1)" in page


def test_a_section_says_what_is_unusual():
    settings = "--data some/ --hidden-size 64 --tokenizer train:10000 --optimizer sgd --lr 2"
    assert (
        trained_on(row("grouped", 0, 4.0, 1.0, settings=settings), COMPARISONS["lm"])
        == "10 steps of 4,096 tokens, some, V = 10,000, hidden 64, SGD"
    )
    config = compare.LmFlags(data="some", tokenizer="train:500", optimizer="sgd", lr=2.0)
    words = values_of(" ".join(config.settings()))
    assert [words[name] for name in ("--tokenizer", "--optimizer", "--weight-decay", "--lr")] == [
        ["train:500"], ["sgd"], ["0"], ["2"],
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"--tokenizer some/path: expected gpt2 or train:N"):
        compare.LmFlags(data="some", tokenizer="some/path")


def test_a_section_tells_the_command_that_makes_it_again(tmp_path):
    lm = compare.LmFlags(data="stories:50", hidden_size=64, steps=30, batch_size=4, lr=0.003)
    sgd = compare.LmFlags(data="stories:50", tokenizer="train:500", steps=30, optimizer="sgd", lr=2.0)
    images = compare.ImageFlags(steps=20, only=("texture=none", "size=large,huge"))
    for config, kind in ((lm, compare.LmFlags), (sgd, compare.LmFlags), (images, compare.ImageFlags)):
        comparison = config.comparison
        job = compare.plan(config, set())[0]
        key = dict(zip(KEY, job.key, strict=True))
        rows = [{**row("grouped", seed, 4.0, 1.0), **key, "seed": str(seed)} for seed in (0, 2)]
        page = document(rows, comparison, "figure.png")
        (command,) = re.findall(r"```bash\npython scripts/compare_heads.py (.*)\n```", page)
        name, *flags = shlex.split(command)
        again = tyro.cli(kind, args=flags)
        assert name == comparison.name
        assert again.seeds == (0, 2)
        assert (
            compare.plan(again, {record_of_runs(tmp_path).key_of(each) for each in rows})[0].settings
            == job.settings
        )
        assert job.key[2:] in {each.key[2:] for each in compare.plan(again, set())}


def test_the_figure_shows_each_head_at_its_best_rate(tmp_path):
    """Sections that differ only in the learning rate share a panel: seconds do not depend on it."""
    rows = [each for rate in ("0.001", "0.002") for name in FLAGS for each in at_rate(rate, name, (4.0,))]
    (family,) = families_of(rows)
    more = [*family, *at_rate("0.1", "grouped", (3,))]
    assert best_rates(more)["grouped"] == "0.1"
    write_figure(tmp_path / "figure.png", draw(rows, COMPARISONS["lm"]))
    with Image.open(tmp_path / "figure.png") as figure:
        assert figure.height < 800


def test_two_heads_alone_have_a_panel_only_if_nothing_else_has():
    few = [row(name, 0, 4.0, 1.0, settings="--max-steps 20") for name in ("grouped", "adaptive")]
    many = [row(name, 0, 4.0, 1.0) for name in FLAGS]
    assert [len(draw(rows, COMPARISONS["lm"]).axes) for rows in (few, many, few + many)] == [1, 1, 1]


def test_the_figure_of_many_sections(tmp_path):
    """Steps between 0.8 and 1.2 seconds have several figures on their axis, and the file stays small."""
    rows = [row(name, 0, 4.0, 1.0, settings=f"--max-steps {n}") for n in range(6) for name in FLAGS]
    for number, each in enumerate(rows):
        each["seconds_per_step"] = str(0.8 + 0.4 * number / len(rows))
    write_figure(tmp_path / "figure.png", draw(rows, COMPARISONS["lm"]))
    assert (tmp_path / "figure.png").stat().st_size < 300_000
    with Image.open(tmp_path / "figure.png") as figure:
        assert figure.height > 6 * 500
    for spread in (1.05, 1.5, 4.0, 30.0):
        assert 3 <= len(ticks(1.0, spread).tick_values(0.8, 1.2 * spread)) <= 14


# ---- the record ----


def test_rows_are_added_and_replaced(tmp_path):
    record = record_of_runs(tmp_path / "heads.csv")
    for loss in (4.0, 5.0):
        record.keep(row("flat-chunked", 0, loss, 1.0))
    record.keep(row("flat-chunked", 1, 6.0, 1.0))
    record.keep({**row("flat-chunked", 1, 6.5, 1.0), "grammar": "7"})  # a column more
    rows = record.rows()
    assert [(each["seed"], each["loss"], each["grammar"]) for each in rows] == [
        ("0", "5.0", ""),
        ("1", "6.5", "7"),
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["heads.csv"]


def test_a_row_does_not_depend_on_where_the_text_lies(tmp_path):
    data = Data
    for folder in ("one", "two"):
        (tmp_path / folder / "text").mkdir(parents=True)
        (tmp_path / folder / "text" / "train.txt").write_text("some text")
    one, two = (data.of(str(tmp_path / folder / "text")) for folder in ("one", "two"))
    assert (one.name, one.size) == (two.name, two.size) == ("text/", 9)
    assert one.flag != two.flag
    (tmp_path / "two" / "text" / "more.txt").write_text("more")
    assert data.of(str(tmp_path / "two" / "text")).size == 13
    assert data.of("stories:50") == data("stories:50", "stories:50", 0)


def test_plan(tmp_path):
    """Seed by seed; what is known is left out; what needs an embedding comes after its source."""

    def names(known=(), **options):
        config = compare.LmFlags(data="stories:50", runs=tmp_path / "runs", **options)
        return [(job.name, job.seed) for job in compare.plan(config, set(known))]

    assert len(names()) == len(LM)
    wanted = ("flat", "grouped-linear-clusters")
    both = [("flat", 0), ("grouped-linear", 0), ("grouped-linear-clusters", 0)]
    assert names(contenders=wanted) == both
    assert names(contenders=wanted, seeds=(0, 3)) == [*both, *((name, 3) for name, _ in both)]
    config = compare.LmFlags(data="stories:50", runs=tmp_path / "runs")
    job = next(job for job in compare.plan(config, set()) if job.name == "flat")
    known = [job.key]
    assert names(known, contenders=("flat", "grouped")) == [("grouped", 0)]
    assert names(known, contenders=("flat",), steps=401) == [("flat", 0)]
    assert names(known, contenders=("flat",), threads=1) == []
    later = names(contenders=("grouped-linear-clusters", "grouped-linear"))
    assert later == [("grouped-linear", 0), ("grouped-linear-clusters", 0)]


def test_a_head_that_nobody_listed_is_trained_with_its_defaults(monkeypatch):
    monkeypatch.setitem(HEADS, "mine", FlatHead)
    flags = compare.LmFlags(data="stories:50", contenders=("mine",))
    (job,) = compare.plan(flags, set())
    assert job.flags()[-9:-5] == ["fp32", "--head", "mine", "--seed"]
    assert "mine" not in [each.name for each in compare.plan(compare.LmFlags(data="stories:50"), set())]
    one = {**row("grouped", 0, 4.0, 1.0), **dict(zip(KEY, job.key, strict=True))}
    assert by_definition([one], flags.comparison.contenders) == ([one], [])
    page = document([one], flags.comparison, "figure.png")
    assert "--seeds 0 --contenders mine\n" in page
    assert "train_lm $settings --head mine  # mine\n" in page


def test_a_row_tells_whose_embedding_was_clustered(tmp_path):
    """Another definition of the source makes other groups: another measurement."""
    keys = []
    for flags in ("--head flat", "--head flat --prior"):
        source = Job("t", "source", Contender("", flags), 0, (), 1, tmp_path)
        ours = Contender("", "--grouping clusters", embeddings_of="source")
        job = Job("t", "ours", ours, 0, (), 1, tmp_path, source=source)
        assert job.flags()[job.flags().index("--embeddings") + 1] == str(source.folder)
        row = dict(zip(KEY, job.key, strict=True))
        assert by_definition([row], {"source": source.contender, "ours": ours}) == ([row], [])
        assert by_definition([row], {"source": ours, "ours": source.contender}) == ([], [row])
        keys.append(job.key)
    assert keys[0] != keys[1]


def test_the_same_settings_for_another_number_of_steps():
    words = ("--lr", "9", "--max-steps", "9", "--eval-every", "9", "--eval-tokens", "9")
    changed = ("--lr", "9", "--max-steps", "70", "--eval-every", "70", "--eval-tokens", "9")
    assert with_steps(words, 70) == changed


def test_a_row_tells_its_run_folder(tmp_path):
    """And folders keep their names: what is trained would be lost to a record."""
    job = Job("t", "flat", Contender("", "--head flat"), 3, ("--lr", "1"), 1, tmp_path)
    row = dict(zip(KEY, job.key, strict=True))
    assert tmp_path / run_name(record_of_runs(tmp_path).key_of(row)) == job.folder
    assert job.folder.name == "flat-seed3-0b159ee1"


def test_every_contender_is_a_command_that_its_trainer_takes():
    from classifier.config import TrainConfig as ImagesTrainConfig
    from lm.config import TrainConfig as LmTrainConfig

    for config, kind in (
        (compare.LmFlags(data="stories:50"), LmTrainConfig),
        (compare.ImageFlags(), ImagesTrainConfig),
    ):
        comparison = config.comparison
        for job in compare.plan(config, set()):
            parsed = tyro.cli(kind, args=job.flags())
            assert parsed.max_steps == job.steps == parsed.eval_every
            assert job.contender.flags.startswith(f"--head {parsed.head}")
            assert parsed.out == job.folder
            # A later change of a default must not change what a row says.
            pinned = ("lr", "schedule", "precision", "warmup_steps", "prior")
            pinned += ("tokenizer", "dropout", "weight_decay") if kind is LmTrainConfig else ("rotation_cue",)
            pinned += ("tie_embeddings",) if kind is LmTrainConfig else ("images_per_class",)
            pinned += ("modulation",) if parsed.head == "grouped" else ()
            given = {flag.removeprefix("--").removeprefix("no-") for flag in job.flags()}
            assert {name.replace("_", "-") for name in pinned} <= given
        assert set(comparison.like) | set(comparison.like.values()) <= set(comparison.contenders)


# ---- as a user ----


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("lm", "--data", "stories", "--contenders", "round"), "--contenders round: expected some of gr"),
        (("lm",), "--data must name the text"),
        (("lm", "--data", "auto", "--seeds", "-1", "--threads", "0"), "--seeds must be at least one number"),
        (("lm", "--steps", "many"), "many"),
        (("images", "--steps", "0"), "--steps must be at least 1"),
        (("images", "--only", "color=red"), "--only: unknown attribute 'color'"),
        (("images", "--redraw", "--out", "nowhere"), "--redraw: no row in nowhere/heads_images.csv"),
    ],
)  # fmt: skip
def test_bad_flags(call, flags, says):
    result = call("compare_heads", *flags)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("compare_heads: ")
    assert says in result.stderr


def test_a_file_that_is_no_record(call, tmp_path):
    (tmp_path / "heads_lm.csv").write_text("a,b\n1,2\n")
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert result.returncode == 2
    assert "not a record of this script: it has no column contender" in result.stderr
    keep(tmp_path / "heads_lm.csv", [{name: value for name, value in ROWS[0].items() if name != "peak_gib"}])
    result = call("compare_heads", "lm", "--redraw", "--out", tmp_path)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "it has no column peak_gib" in result.stderr


def test_a_record_that_is_cut_short(tmp_path):
    keep(tmp_path / "heads_lm.csv", ROWS[:2])
    text = (tmp_path / "heads_lm.csv").read_text()
    (tmp_path / "heads_lm.csv").write_text(text[: text.rindex(",2.15.0")])
    with pytest.raises(UserError, match="row 2 is cut short"):
        record_of_runs(tmp_path / "heads_lm.csv").rows()


def test_seconds_of_a_step_are_the_median(tmp_path):
    """A pause of half a minute, a step told twice after a resumption, an evaluation between."""
    points = [(1, 0.02), (2, 0.03), (3, 0.53), (4, 0.54), (4, 0.545), (5, 0.555)]
    lines = [json.dumps({"step": step, "minutes": minutes, "loss/train": 1}) for step, minutes in points]
    lines.insert(3, json.dumps({"step": 3, "minutes": 0.53, "loss/validation": 1}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert seconds_per_step(tmp_path) == pytest.approx(0.6)


def test_two_calls_do_not_train_in_one_folder(tmp_path, monkeypatch):
    lines = []
    held, go_on = threading.Event(), threading.Event()

    def other_call():
        with runs.alone_in(tmp_path / "run"):
            held.set()
            go_on.wait()

    thread = threading.Thread(target=other_call)
    thread.start()
    held.wait()
    monkeypatch.setattr(runs, "say", lambda line: (lines.append(line), go_on.set()))
    with runs.alone_in(tmp_path / "run"):
        thread.join()
    with runs.alone_in(tmp_path / "run"), runs.alone_in(tmp_path / "another"):
        assert lines == [f"{tmp_path / 'run'}: another call is training here; waiting for it"]


def test_a_signal_before_the_run_has_begun_ends_it_too(monkeypatch, capsys):
    begin, before = subprocess.Popen, signal.getsignal(signal.SIGTERM)

    def popen(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return begin(*arguments, **options)

    monkeypatch.setattr(runs.subprocess, "Popen", popen)
    with pytest.raises(SystemExit) as stopped:
        runs.launch(["-c", "import time; time.sleep(100)"], 1)
    assert capsys.readouterr().err == "stopped; call again to continue\n"
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_between_two_runs_is_one_line(capsys):
    def press():
        raise KeyboardInterrupt

    assert exit_code("compare_heads", press) == 130
    assert capsys.readouterr().err == "compare_heads: interrupted\n"


@pytest.mark.slow
def test_training_in_this_process(tmp_path, monkeypatch, capfd):
    """A head that only this process has registered; flags and threads are put back."""
    monkeypatch.setitem(HEADS, "mine", FlatHead)
    words, threads = list(sys.argv), torch.get_num_threads()
    folders = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    flags = compare.ImageFlags(quick=True, threads=1, contenders=("mine",), **folders)
    compare.main(flags, train=runs.train_in_this_process)
    (found,) = record_of_runs(tmp_path / "out" / "heads_images.csv").rows()
    assert (found["contender"], found["flags"], found["steps"]) == ("mine", "--head mine", "12")
    assert 0 < float(found["loss"]) < 14
    assert (sys.argv, torch.get_num_threads()) == (words, threads)
    assert "runs to do: 1;" in capfd.readouterr().err


@pytest.mark.slow
def test_what_the_trainer_refuses_ends_the_comparison(call, tmp_path):
    flags = ("--data", tmp_path / "none", "--contenders", "grouped", "--runs", tmp_path / "runs")
    result = call("compare_heads", "lm", *flags, "--out", tmp_path)
    assert result.returncode == 2
    assert "no such file or folder" in result.stderr
    assert "compare_heads: grouped was refused by the trainer" in result.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "contenders", "item"),
    [
        ("lm", ("grouped-linear-clusters", "grouped-film", "flat-chunked"), "8 steps of 256 tokens"),
        ("images", ("factored", "grouped-both", "flat-chunked"), "12 steps of 16 images"),
    ],
)
def test_a_small_comparison(call, tmp_path, kind, contenders, item):
    flags = ("--quick", "--threads", 1, "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    result = call("compare_heads", kind, *flags, "--contenders", *contenders)
    assert result.returncode == 0, result.stderr
    record = tmp_path / "out" / f"heads_{kind}.csv"
    rows = {row["contender"]: row for row in record_of_runs(record).rows()}
    # The clusters need the embedding of grouped-linear, which is trained for them.
    assert set(rows) == ({*contenders, "grouped-linear"} if kind == "lm" else set(contenders))
    for each in rows.values():
        assert 0 < float(each["loss"]) < 14
        assert 0 < float(each["seconds_per_step"]) < float(each["seconds"])
        assert int(each["head_parameters"]) < int(each["parameters"])
        assert str(tmp_path) not in "".join(each.values())
    page = (tmp_path / "out" / f"heads_{kind}.md").read_text()
    assert f"## {item}" in page
    assert str(tmp_path) not in page
    assert (tmp_path / "out" / f"heads_{kind}.png").exists()
    before = record.read_bytes()
    again = call("compare_heads", kind, *flags, "--contenders", *contenders)
    assert again.returncode == 0, again.stderr
    assert "nothing to train" in again.stderr
    assert record.read_bytes() == before
