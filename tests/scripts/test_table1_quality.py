"""Table 1: the paper's figures beside ours, from a record made by hand and from tiny runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import compare_heads as compare
from scripts import table1_quality as table1
from scripts.common.jobs import KEY, Job, record_of_runs
from scripts.reports.quality import MODELS, ORDER, PAPER, SCORES
from sqrtvocab.errors import RunError

FLAGS = {
    "grouped": "--head grouped --modulation scale-shift --no-tie-embeddings --grouping index --no-prior",
    "grouped-linear": "--head grouped-linear --no-tie-embeddings --grouping frequency --prior",
    "flat-tied": "--head flat --tie-embeddings --grouping frequency --no-prior",
}
REST = "--num-layers 8 --max-steps 10"


def row(contender, size, loss, **other):
    """A row of a record, made by hand."""
    values = {
        "contender": contender, "seed": 0, "settings": f"--data text/ --hidden-size {size} {REST}",
        "flags": FLAGS[contender], "data_bytes": 1000, "loss": loss, "bits_per_byte": loss / 3,
        "accuracy": 0.2, "group_accuracy": 0.5, "seconds": 60, "seconds_per_step": 6, "peak_gib": 1.5,
        "parameters": 1_234_567, "head_parameters": 4_321, "steps": 10, "items": 40_960,
        "training_items": 999_999, "threads": 2, "torch": "2.15.0", "machine": "a processor, 2 cores",
    }  # fmt: skip
    return {name: str(value) for name, value in {**values, **other}.items()}


def cells(page):
    """The lines of the table, by model and size."""
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:2] == "| "
    ]
    return {(line[0], line[1]): line[2:] for line in lines[2:]}


def test_the_table_of_a_record(call, tmp_path):
    scores = {"grammar": 3.5, "creativity": 4, "consistency": 5, "plot": 2.25, "age": 6}
    rows = [
        row("grouped", 128, 4.25), row("grouped", 128, 5.0, seed=1), row("grouped-linear", 128, 3.75),
        row("flat-tied", 128, 4.0), row("flat-tied", 128, 4.5, seed=1),
        row("flat-tied", 256, 3.5, judge="strict", **scores),
        row("flat-tied", 128, 9.0, flags="--head flat"),
        row("flat-tied", 256, 3.5, seed=1, judge="strict", **scores),
        row("flat-tied", 256, 3.5, seed=2, judge="mild", **dict.fromkeys(scores, 9)),
    ]  # fmt: skip
    for each in rows:
        record_of_runs(tmp_path / "quality.csv").keep(each)
    result = call("table1_quality", "--redraw", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "quality.md").read_text()
    table = cells(page)
    assert list(table) == [
        ("GPT-2", "128"), ("GPT-2", "256"), ("ours: GPT-2 with the paper's head", "128"),
        ("ours: GPT-2 with the default head", "128"),
    ]  # fmt: skip
    # Student's t for two values is 12.706: 12.706 · 0.25 is half of the interval around 4.25.
    assert table["GPT-2", "128"][:3] == ["1,234,567", "2", "4.250 ± 3.177"]
    assert table["GPT-2", "128"][-2:] == ["3.8, 4.22, 3.7, 2.95, 4.55", "no judge"]
    assert table["GPT-2", "256"][-2:] == ["4.65, 3.6, 6.05, 4.82, 4.75", "3.50, 4.00, 5.00, 2.25, 6.00"]
    ours = table["ours: GPT-2 with the paper's head", "128"]
    assert ours[3].startswith("+0.375 ±")
    assert ours[-2] == "3.53, 3.62, 4.5, 3.25, 4.55"
    assert table["ours: GPT-2 with the default head", "128"][-2:] == ["not in the paper", "no judge"]
    assert page.count("## 10 steps of 4,096 tokens") == 1
    assert "Our scores are those of strict." in page
    command = "--data text/ --hidden-sizes 128 256 --seeds 0 1 2 --steps 10"
    assert f"```bash\npython scripts/table1_quality.py {command}\n```" in page
    sizes = re.findall(r"--hidden-size (\d+) .* # (\S+)\n", page.partition("settings=")[2])
    assert sizes == [
        ("128", "flat-tied"), ("256", "flat-tied"), ("128", "grouped"), ("128", "grouped-linear")
    ]  # fmt: skip
    assert "by an older definition: `flat-tied` (`--head flat`)." in page


def test_the_papers_scores_are_all_there():
    assert len(PAPER) == 9
    assert all(len(scores) == len(SCORES) for scores in PAPER.values())
    assert set(ORDER) == set(MODELS)


def test_what_compare_heads_has_trained_is_taken_as_it_is(tmp_path):
    shared = {"data": "stories:50", "steps": 30, "batch_size": 4, "runs": tmp_path}
    folders = {job.folder for job in compare.plan(compare.LmFlags(**shared), set())}
    jobs = table1.plan(table1.Config(**shared, hidden_sizes=(128,)), set())
    assert {job.name for job in jobs if job.folder in folders} == {"grouped", "grouped-linear", "flat-tied"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "--data must name the text"),
        (("--data", "stories", "--models", "gpt5"), "--models gpt5: expected some of grouped, "),
        (("--data", "stories", "--hidden-sizes"), "--hidden-sizes: name at least one"),
        (("--data", "stories", "--models"), "--models: name at least one of grouped, "),
        (("--data", "stories", "--hidden-sizes", "100", "--steps", "0"), "--hidden-sizes 100: expected"),
    ],
)  # fmt: skip
def test_bad_flags(call, flags, says):
    result = call("table1_quality", *flags)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr


def test_another_judge_grades_anew_and_nan_is_never_kept(tmp_path, monkeypatch):
    """The judge is a stand-in that writes the file of `judge_lm`."""
    record, asked = record_of_runs(tmp_path / "quality.csv"), []
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    monkeypatch.setattr(Job, "is_finished", lambda job: True)

    def launch(arguments, threads):
        model, out = (arguments[arguments.index(flag) + 1] for flag in ("--model", "--out"))
        valid = 0 if model == "mute" else 20
        mean = {"strict": 3.0, "mild/9": 8.0, "mute": float("nan")}[model]
        path = Path(out).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        scores = {name: {"mean": mean} for name in SCORES}
        path.write_text(json.dumps({"valid": valid, "scores": scores}))
        asked.append((model, path.parent, path.name))
        return 0

    monkeypatch.setattr(table1, "launch", launch)

    def config(judge):
        options = {"models": ("flat-tied",), "hidden_sizes": (128,), "runs": tmp_path / "runs"}
        return table1.Config(data="stories:50", judge_model=judge, **options)

    (job,) = table1.plan(config("strict"), set())
    key = dict(zip(KEY, job.key, strict=True))
    record.keep({**row("flat-tied", 128, 4.0), **key})

    def scores():
        (found,) = record.rows()
        return found.get("judge"), found.get("grammar")

    with pytest.raises(RunError, match="no scores for flat-tied"):
        table1.grade_all(record, config("mute"))
    assert scores() == (None, None)
    for judge, grade in (("strict", "3.0"), ("strict", "3.0"), ("mild/9", "8.0")):
        table1.grade_all(record, config(judge))
        assert scores() == (judge, grade)
    assert [model for model, _, _ in asked] == ["mute", "strict", "mild/9"]  # the second time it was known
    assert asked[-1][1:] == (job.folder, "judge-mild-9.json")
    with pytest.raises(RunError, match="no scores for flat-tied"):
        table1.grade_all(record, config("mute"))
    assert scores() == ("mild/9", "8.0")


@pytest.mark.slow
def test_quick_with_a_judge(call, tmp_path, monkeypatch):
    """First without a server, then with one: nothing is trained again, the scores are added."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    flags = ("--quick", "--threads", 1, "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    flags += ("--models", "grouped", "gpt-neo")
    result = call("table1_quality", *flags)
    assert result.returncode == 0, result.stderr
    before = cells((tmp_path / "out" / "quality.md").read_text())
    assert [key[0] for key in before] == ["GPT-Neo"] * 2 + ["ours: GPT-2 with the paper's head"] * 2
    assert all(line[-1] == "no judge" for line in before.values())
    server = Path(__file__).parents[1] / "lm" / "fake_judge.py"
    command = [sys.executable, server, tmp_path / "log.jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            monkeypatch.setenv("OPENAI_BASE_URL", address)
            monkeypatch.setenv("OPENAI_API_KEY", "right")
            result = call("table1_quality", *flags)
        finally:
            process.terminate()
    assert result.returncode == 0, result.stderr
    assert "nothing to train" in result.stderr
    after = cells((tmp_path / "out" / "quality.md").read_text())
    assert all(line[-1] == "7.00, 6.50, 8.00, 5.00, 6.00" for line in after.values())
    assert [line[:-1] for line in after.values()] == [line[:-1] for line in before.values()]
    rows = record_of_runs(tmp_path / "out" / "quality.csv").rows()
    assert {each["graded"] for each in rows} == {"20"}
    judged = [json.loads(path.read_text())["judge"] for path in (tmp_path / "runs").glob("*/judge-*.json")]
    assert judged == ["gpt-4o-mini"] * 4
    assert not re.search(re.escape(str(tmp_path)), (tmp_path / "out" / "quality.md").read_text())
