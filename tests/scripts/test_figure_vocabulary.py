"""Bits per byte against V: equal minutes, the crossover and what is said of it, the record, other text."""

import csv
import json
import math
import re

import pytest
import tyro

from lm.cli import eval_main
from lm.config import TrainConfig
from lm.text.sources import Files
from scripts import figure_vocabulary as script
from scripts.common import finished_lm
from scripts.common.jobs import KEY, RESULTS, record_of_runs, run_name
from scripts.common.means import Mean
from scripts.common.pages import write_figure
from scripts.common.records import Record
from scripts.reports.vocabulary import bytes_seen, document, verdict
from scripts.reports.vocabulary_figure import draw
from scripts.reports.vocabulary_rows import (
    crossings,
    crossover,
    minutes_of,
    sections,
    size_of,
    vocabulary_of,
)


def curve(**values):
    return {int(size.removeprefix("v")): Mean.of([value]) for size, value in values.items()}


# ---- where the heads cross ----


def test_the_crossover_lies_on_straight_lines_in_log_v():
    theirs = curve(v1000=2.0, v4000=2.0, v16000=2.0)
    assert crossover(curve(v1000=2.3, v4000=2.1, v16000=1.9), theirs) == pytest.approx(8_000)
    assert crossover(curve(v1000=2.3, v4000=2.3, v16000=1.9), theirs) == pytest.approx(4_000 * 4**0.75)
    # Equal is not below: it stays below from there on.
    assert crossover(curve(v1000=2.3, v4000=2.0, v16000=1.9), theirs) == pytest.approx(4_000)


def test_no_crossover_and_one_everywhere():
    theirs = curve(v1000=2.0, v4000=2.0)
    assert crossover(curve(v1000=2.1, v4000=2.1), theirs) is None
    assert crossover(curve(v1000=1.9, v4000=2.0), theirs) is None  # not below at the largest
    assert crossover(curve(v1000=1.9, v4000=1.9), theirs) == 1_000
    assert crossings(curve(v1000=1.9, v4000=1.9), theirs) == []
    assert crossover(curve(v1000=1.9), curve(v4000=2.0)) is None  # no size of both
    assert crossover({}, {}) is None


def test_of_several_crossings_the_last_counts():
    theirs = curve(v1000=2.0, v4000=2.0, v16000=2.0)
    ours = curve(v1000=1.9, v2000=7.0, v4000=2.1, v16000=1.9)  # a size that only one has does not count
    assert crossings(ours, theirs) == pytest.approx([2_000, 8_000])
    assert crossover(ours, theirs) == pytest.approx(8_000)


# ---- rows made by hand ----


SIZES = {
    "train:1000": 1_000, "train:4000": 4_000, "train:16000": 16_000, "train:32000": 32_000, "gpt2": 50_257,
    "gpt2-occurring": 11_041,
}  # fmt: skip


def settings(vocabulary, steps, tokens, data="text/"):
    recipe = " ".join(script.tokens_of(vocabulary, 0.008))
    return (
        f"--data {data} --hidden-size 128 --num-layers 8 --num-attention-heads 8 --seq-len 512 "
        f"--batch-size 4 --max-steps {steps} --epochs 1000 --warmup-steps 50 --eval-every {steps} "
        f"--eval-tokens {tokens} --sample-every 0 {recipe}"
    )


def rows(head, vocabulary, bits, seed=0, steps=90, data="text/", **other):
    """A trial, at two seconds a step, and the whole run of three minutes after it."""
    values = {
        "contender": head, "seed": seed, "settings": settings(vocabulary, steps, 0, data),
        "flags": f"--head {head}", "data_bytes": 1000, "loss": 2 * math.log(2), "bits_per_byte": bits,
        "accuracy": 0.25, "group_accuracy": 0.5, "seconds": 186, "seconds_per_step": 2.1, "peak_gib": 1.5,
        "parameters": 1_234_567, "head_parameters": 4_321, "steps": steps, "items": 3_000_000,
        "training_items": 999_999, "threads": 1, "torch": "2.15.0", "machine": "a processor, 2 cores",
        "vocab_size": SIZES[vocabulary],
    }  # fmt: skip
    whole = {name: str(value) for name, value in {**values, **other}.items()}
    trial = {"settings": settings(vocabulary, 20, 2048, data), "seconds_per_step": "2.0", "steps": "20"}
    return [{**whole, **trial, "bits_per_byte": "9"}, whole]


def record_with(ours, theirs, seed=0):
    """Rows of bits per byte by vocabulary."""
    both = {"grouped-linear": ours, "flat": theirs}
    return [
        row
        for head, bits in both.items()
        for name, value in bits.items()
        for row in rows(head, name, value, seed)
    ]


OURS = {"train:1000": 2.3, "train:4000": 2.1, "train:16000": 1.9, "gpt2": 1.95}
THEIRS = {"train:1000": 2.2, "train:4000": 2.0, "train:16000": 2.0, "gpt2": 2.4}
ROWS = record_with(OURS, THEIRS)


def part_of(found):
    (part,) = sections(found)
    return part


def test_the_size_is_what_the_run_found():
    trial, whole = rows("flat", "train:32000", 2.0, vocab_size=16_523)
    assert size_of(whole) == 16_523
    assert "pairs for 16,523 tokens only, where `train:32000` asks" in document(sections([trial, whole]), "")
    unknown = {**whole, "vocab_size": ""}
    assert size_of(unknown) is None
    assert sections([trial, unknown]) == []  # it cannot be drawn yet
    assert vocabulary_of(rows("flat", "gpt2-occurring", 2.0)[1]) == "gpt2-occurring"


def test_only_what_compares_is_compared():
    longer = rows("flat", "gpt2", 1.5, steps=300)
    other = rows("flat", "gpt2", 1.5, data="other/")
    parts = sections([*ROWS, *longer, *other])
    assert [part.minutes for part in parts] == [3.0, 10.0, 3.0]
    assert [len(part.entries) for part in parts] == [8, 1, 1]
    assert sections([row for row in ROWS if "--eval-tokens 0" in row["settings"]]) == []  # without trials


@pytest.mark.parametrize("asked", [0.05, 2.5, 3.0, 12.0])
def test_steps_tell_the_minutes_that_were_asked_for(asked):
    """At the speed of the trial, however slow the machine was in it: models of one call stand together."""
    for speed in (0.0231, 0.2537, 0.6385):
        assert minutes_of(round(60 * asked / speed), speed) == asked


def test_tokens_that_occur_are_no_point_of_the_curve():
    part = part_of([*ROWS, *rows("flat", "gpt2-occurring", 1.0)])
    assert list(part.curve("flat")) == [1_000, 4_000, 16_000, 50_257]
    assert 11_041 in [entry.size for entry in part.entries]


# ---- what the page says ----


def test_the_page_says_below_which_v_nobody_needs_groups():
    page = document(sections(ROWS), "x.png")
    assert "## 3 minutes each on `text/`" in page
    # −0.1 at 4,000, +0.1 at 16,000: in the middle, in log V.
    assert "**Below V ≈ 8,000 nobody needs a head with groups** (after these minutes, on this text)" in page
    assert "−0.100 at 16,000, −0.450 at 50,257. One seed each: how much of a difference is chance" in page
    best = (
        "`grouped-linear` with `train:16000` (V = 16,000, 1.900), `flat` with `train:4000` (V = 4,000, 2.000)"
    )
    assert f"Each at its best: {best}; who may choose V gains by groups here (−0.100, n = 1)." in page
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == [name for name in OURS for _ in range(2)]
    cells = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    # Two bits a token, 2.2 bits a byte.
    seen = f"{3 * 2 / 2.2:.1f}"
    assert cells == [
        "`train:1000`", "`flat`", "1,000", "2.200", "3.1", "90", "3,000,000", seen, "2.10", "1.50",
        "1,234,567", "",
    ]  # fmt: skip
    vocabularies = "--vocabularies train:1000 train:4000 train:16000 gpt2"
    assert f"figure_vocabulary.py --data text/ {vocabularies} --minutes 3 --lr 0.008 " in page
    assert "Other work" not in page
    busy = [{**row, "machine": row["machine"] + ", shared"} for row in ROWS]
    assert "Other work shared the cores: the steps compare" in document(sections(busy), "x.png")


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ((2.3, 2.1, 2.1, 2.4), "**Up to V = 50,257 nobody needs a head with groups**"),
        ((2.1, 2.1, 2.1, 2.5), "better than `flat` at V = 1,000, but not at 50,257."),
        ((2.1, 1.9, 1.9, 1.9), "is not known**, it is less than 1,000."),
        ((2.1, 2.1, 1.9, 1.9), "but not at 4,000: **there is no single V below which nobody needs"),
    ],
)
def test_what_is_said_of_other_curves(ours, says):
    assert says in verdict(part_of(record_with(dict(zip(OURS, ours, strict=True)), THEIRS)))[0]


def test_a_head_that_is_missing():
    assert verdict(part_of(rows("flat", "gpt2", 2.0))) == ["No vocabulary has both heads yet."]


def test_several_seeds_tell_what_is_chance():
    second = {"train:1000": 2.301, "train:4000": 1.95, "train:16000": 1.9, "gpt2": 1.95}
    said = " ".join(verdict(part_of([*ROWS, *record_with(second, THEIRS, seed=1)])))
    assert "One seed" not in said
    # Differences of 0.1 and −0.05 at 4,000: an interval of ± 0.953 (Student's t, 12.706 · 0.075).
    assert "+0.025 ± 0.953 at 4,000" in said
    assert "At 4,000 the seeds do not tell the two apart." in said
    some = rows("flat", "train:1000", 2.2, 1) + rows("grouped-linear", "train:1000", 2.3, 1)
    assert "One seed at 4,000, 16,000, 50,257: how much" in " ".join(verdict(part_of([*ROWS, *some])))


def test_bytes_seen_are_tokens_times_their_length():
    row = {"items": "1000", "loss": str(3 * math.log(2)), "bits_per_byte": "1.5"}
    assert bytes_seen(row) == pytest.approx(2_000)  # three bits a token, two bytes


AFTER = {
    "other": "packages/", "other_data_bytes": "5", "other_bytes": "400000", "other_bits_per_byte": "3.25",
    "characters_per_s": "512.4", "written_on": "a processor, 1 thread, shared",
}  # fmt: skip


def test_what_was_measured_afterwards_stands_in_the_table():
    known = [row | (AFTER if "--tokenizer gpt2" in row["settings"] else {}) for row in ROWS]
    page = document(sections(known), "x.png")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert "| bits per byte | of `packages/` | minutes |" in lines[0]
    assert "| 2.200 |  | 3.1 |" in lines[2]
    assert lines[-1].endswith(" 512 |")
    assert "| 1.950 | 3.250 | 3.1 |" in lines[-1]
    assert "Other text: 400,000 bytes of its validation part" in page
    assert (
        "top-k 50, one text at a time, all models in turns, medians (a processor, 1 thread, beside oth"
        in page
    )


def test_the_figure(tmp_path):
    near = record_with({"train:32000": 1.9}, {"train:32000": 2.0})  # too near for a number of its own
    more = [*({**row, "vocab_size": "16523"} for row in near), *rows("flat", "gpt2", 1.5, steps=300)]
    parts = sections([*ROWS, *rows("grouped-linear", "gpt2-occurring", 2.2), *more])
    figure = draw(parts)
    first, second = figure.axes
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["1,000", "4,000", "16,000", "50,257"]
    assert [text.get_text() for text in first.texts] == ["from V ≈ 8,000"]
    labels = [text.get_text() for text in first.get_legend().get_texts()]
    assert labels == ["grouped-linear", "grouped-linear, GPT-2's tokens that occur", "flat"]
    assert not second.texts
    write_figure(tmp_path / "x.png", figure)
    assert not draw(sections(record_with({"gpt2": 1.0}, {"gpt2": 2.0}))).axes[0].texts  # no crossing to mark


# ---- what is trained ----


def config(tmp_path, **options):
    given = {"data": "stories:50", "runs": tmp_path / "runs", "vocabularies": ("train:300", "gpt2-occurring")}
    return script.Config(**{**given, **options})


def keep(record, jobs, **other):
    """Rows as if these jobs were trained."""
    for job in jobs:
        row = rows("flat", "gpt2", 2.0, **other)[1]
        record.keep({**row, **dict(zip(KEY, job.key, strict=True)), "steps": str(job.steps)})


def test_equal_minutes_are_steps_by_the_speed_of_the_trial(tmp_path):
    record = record_of_runs(tmp_path / "vocabulary.csv")
    trials = config(tmp_path).trials()
    assert [(job.name, job.settings[-1]) for job in trials] == [
        ("grouped-linear", "fp32"), ("flat", "fp32"), ("grouped-linear", "occurring"), ("flat", "occurring"),
    ]  # fmt: skip
    for job, speed in zip(trials[:3], (0.5, 2.0, 100.0), strict=True):  # the last one is not there yet
        keep(record, [job], seconds_per_step=speed)
    jobs = script.whole_runs(trials, record, 3.0)
    assert [job.steps for job in jobs] == [360, 90, 2]
    for job, warmup in zip(jobs, (50, 18, 1), strict=True):
        flags = dict(zip(job.settings[::2], job.settings[1::2], strict=False))
        assert flags["--max-steps"] == flags["--eval-every"] == str(job.steps)
        assert (flags["--warmup-steps"], flags["--eval-tokens"]) == (str(warmup), "0")
    assert jobs[0].settings[-2:] != ("--vocab", "occurring") == jobs[2].settings[-2:]
    assert not any("--vocab" in job.settings for job in jobs[:2])  # as rows have it that were there before


def test_every_vocabulary_is_a_command_that_the_trainer_takes(tmp_path):
    found = [
        tyro.cli(TrainConfig, args=job.flags())
        for job in script.Config(data="stories:50", runs=tmp_path).trials()
    ]
    assert {(each.tokenizer, each.vocab) for each in found} >= {
        ("train:1000", "whole"), ("gpt2", "whole"), ("gpt2", "occurring"),
    }  # fmt: skip
    assert {each.max_steps for each in found} == {script.TRIAL_STEPS}


def test_what_the_record_has_is_not_trained_again(tmp_path, monkeypatch, capsys):
    """The trainer is a stand-in that leaves what a run leaves."""
    trained = []

    def train(lacking, record, threads, max_minutes, after, shared, way):
        trained.extend(job.key for job in lacking)
        for job in lacking:
            (job.folder / "best").mkdir(parents=True)
            (job.folder / "best" / "state.json").write_text("{}")
            (job.folder / "config.json").write_text(json.dumps({"vocab_size": 299}))
            keep(record, [job])
        after()

    monkeypatch.setattr(script, "run_all", train)
    flags = config(tmp_path, out=tmp_path / "out")
    script.main(flags)
    assert len(trained) == len(set(trained)) == 8
    before = (tmp_path / "out" / "vocabulary.csv").read_bytes()
    script.main(flags)
    assert len(trained) == 8
    assert (tmp_path / "out" / "vocabulary.csv").read_bytes() == before
    sizes = Record(tmp_path / "out" / "vocabulary_after.csv", ("run",)).rows()
    record = record_of_runs(tmp_path / "out" / "vocabulary.csv")
    whole = {run_name(record.key_of(row)) for row in record.rows() if "--eval-tokens 0" in row["settings"]}
    assert {row["run"] for row in sizes} == whole
    assert {row["vocab_size"] for row in sizes} == {"299"}
    script.main(config(tmp_path, out=tmp_path / "out", vocabularies=("train:300", "gpt2")))
    assert len(trained) == 12
    capsys.readouterr()


# ---- afterwards ----


def test_the_same_other_text_for_every_tokenizer():
    whole = finished_lm.open_other("stories:200").validation
    texts = list(finished_lm.Part(whole, 20_000))
    assert 18_000 < sum(len(text.encode()) for text in texts) <= 20_000
    assert max(map(len, texts)) < 8_000
    stories = list(whole)
    places = [stories.index(text) for text in texts[:-1]]
    assert places == list(range(0, len(stories), places[1]))[: len(places)]  # spread over all of it,
    assert places[-1] > 0.8 * len(stories)  # also where that is less than two stories of which one is taken
    half = finished_lm.Part(whole, int(0.6 * whole.size))
    assert stories.index(list(half)[-1]) > 0.8 * len(stories)
    assert list(finished_lm.Part(whole, 10**9)) == stories
    one, two = finished_lm.Part(whole, 5), finished_lm.Part(whole, 6)
    assert (one.choice, one.fingerprint()) != (two.choice, two.fingerprint())


def test_a_letter_is_not_cut_in_two(tmp_path):
    (tmp_path / "x.txt").write_text("ab€<|endoftext|>cd")
    assert list(finished_lm.Part(Files((tmp_path / "x.txt",)), 4)) == ["ab"]


# ---- as a user ----


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "--data must name the text"),
        (("--data", "auto"), "--data must name the text"),
        (("--data", "stories", "--vocabularies", "bert"), "--vocabularies bert: expected gpt2, gpt2-occ"),
        (("--data", "stories", "--vocabularies", "train:x"), "--vocabularies train:x: expected gpt2, "),
        (("--data", "stories", "--minutes", "0", "--lr", "-1"), "--minutes must be a positive number, got 0"),
        (("--other", "auto"), "--other must name the text"),
        (("--other", "stories", "--redraw"), "--other: --redraw measures nothing"),
        (("--redraw", "--out", "nowhere"), "--redraw: no row in nowhere/vocabulary.csv"),
        (("--other", "stories", "--out", "here"), "--other without --data: no row in here/vocabulary.csv"),
        (("--other", "nowhere.txt", "--out", "here"), "--other nowhere.txt: no such file or folder"),
    ],
)  # fmt: skip
def test_bad_flags(call, flags, says):
    result = call("figure_vocabulary", *flags)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("figure_vocabulary: ")
    assert says in result.stderr


def test_runs_that_are_gone_cannot_be_scored(call, tmp_path):
    for row in ROWS:
        record_of_runs(tmp_path / "vocabulary.csv").keep({name: row[name] for name in (*KEY, *RESULTS)})
    result = call(
        "figure_vocabulary", "--other", "stories:50", "--out", tmp_path, "--runs", tmp_path / "none"
    )
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "none of the runs of" in result.stderr
    result = call("figure_vocabulary", "--redraw", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"rows left out: {len(ROWS) // 2}; --runs runs/vocabulary lacks their runs" in result.stderr
    assert not (tmp_path / "vocabulary.md").exists()
    record, after = (
        record_of_runs(tmp_path / "vocabulary.csv"),
        Record(tmp_path / "vocabulary_after.csv", ("run",)),
    )
    for row in record.rows():
        after.keep({"run": run_name(record.key_of(row)), "vocab_size": str(SIZES[vocabulary_of(row)])})
    result = call("figure_vocabulary", "--redraw", "--out", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "**Below V ≈ 8,000" in (tmp_path / "vocabulary.md").read_text()
    assert (tmp_path / "vocabulary.png").stat().st_size > 1000


@pytest.mark.slow
def test_quick_and_what_comes_afterwards(call, forked, tmp_path):
    flags = ("--threads", 1, "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    result = call("figure_vocabulary", "--quick", *flags)
    assert result.returncode == 0, result.stderr
    record, after = tmp_path / "out" / "vocabulary.csv", tmp_path / "out" / "vocabulary_after.csv"
    before = record.read_bytes()
    trained = record_of_runs(record).rows()
    assert set(trained[0]) == {*KEY, *RESULTS, "training_loss"}
    assert len(trained) == 12
    with after.open(newline="") as file:
        sizes = [int(row["vocab_size"]) for row in csv.DictReader(file)]
    assert sorted(sizes)[:4] == [300, 300, 500, 500]
    assert 500 < sizes[-1] < 5_000

    result = call("figure_vocabulary", "--other", "stories:60", *flags)
    assert result.returncode == 0, result.stderr
    assert record.read_bytes() == before
    with after.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["other"] for row in found} == {"stories:60"}
    assert all(0 < float(row["other_bits_per_byte"]) < 9 for row in found)
    assert all(float(row["characters_per_s"]) > 0 for row in found)
    assert len({row["other_bytes"] for row in found}) == 1  # the same text
    page = (tmp_path / "out" / "vocabulary.md").read_text()
    assert page.count("\n## 0.05 minutes each on `stories:200`\n") == 1
    assert len(re.findall(r"^\| `(?:train:300|train:500|gpt2-occurring)` ", page, flags=re.MULTILINE)) == 6
    assert "| of `stories:60` |" in page
    assert str(tmp_path) not in page
    # `eval_lm` says the same: the text is shorter than what is scored at most.
    run = tmp_path / "runs" / found[0]["run"]
    argv = [run, "--data", "stories:60", "--samples", 0]
    assert forked(eval_main, argv, tmp_path, {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}).wait().code == 0
    said = json.loads((run / "eval.json").read_text())["bits_per_byte"]
    assert float(found[0]["other_bits_per_byte"]) == pytest.approx(said, rel=1e-4)

    kept = after.read_bytes()
    again = call("figure_vocabulary", "--quick", "--other", "stories:60", *flags)
    assert again.returncode == 0, again.stderr
    assert "nothing to train" in again.stderr
    assert "nothing to score" in again.stderr
    assert (record.read_bytes(), after.read_bytes()) == (before, kept)
