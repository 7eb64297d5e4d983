"""The comparison on shuffled labels: who is compared, what chooses, what counts, what equal time means."""

import json

import pytest

from scripts import compare_heads as compare
from scripts.common import shuffled
from scripts.reports import shuffled_figure, shuffled_page
from sqrtvocab.errors import UserError

ONLY = "--only texture=none --only opacity=1.0 --only border=solid --only size=large,huge"
SETTINGS = f"{ONLY} --batch-size 64 --max-steps 100 --eval-every 100 --eval-images 50"


def row(name, loss, rate="0.001", seed=0, cpu=40.0, test_loss=None, accuracy=0.5, steps=100):
    """A row of a record, made by hand."""
    settings = SETTINGS.replace("steps 100", f"steps {steps}").replace("every 100", f"every {steps}")
    values = {
        "contender": name, "seed": seed, "settings": f"{settings} --lr {rate}",
        "flags": shuffled.contenders(4608)[name].flags, "data_bytes": "", "loss": loss, "bits_per_byte": "",
        "accuracy": accuracy, "group_accuracy": 0.5, "seconds": 1, "seconds_per_step": 1, "peak_gib": 1.25,
        "parameters": 99, "head_parameters": 1_234, "steps": steps, "items": 64 * steps, "training_items": 9,
        "threads": 1, "torch": "2.15.0", "machine": "a processor, 2 cores, shared",
        "test_loss": loss + 1 if test_loss is None else test_loss, "test_accuracy": accuracy,
        "cpu_seconds": cpu,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


def test_who_is_compared_depends_on_how_many_classes_there_are():
    few, many = shuffled.contenders(4_608), shuffled.contenders(184_320)
    assert set(many) - set(few) == {"sampled-8192"}  # more than there are classes
    assert "--hashes 16 --buckets 288 " in few["mach"].flags  # as many outputs as classes
    for name, contender in many.items():
        assert ("--shuffle-labels 0" in contender.flags) != name.endswith("-oracle")


def jobs_of(tmp_path, rates=(0.0003, 0.001, 0.003)):
    chosen = {name: shuffled.contenders(4_608)[name] for name in ("mach", "flat")}
    return shuffled.equal_images(chosen, rates, (0,), tuple(SETTINGS.split()), tmp_path, 50)


def test_the_middle_rate_comes_first(tmp_path):
    jobs = jobs_of(tmp_path)
    assert [(job.name, job.settings[-1]) for job in jobs[:2]] == [("mach", "0.001"), ("flat", "0.001")]
    assert {job.settings[-1] for job in jobs} == {"0.0003", "0.001", "0.003"}
    assert len({job.folder for job in jobs}) == 6


def test_validation_images_choose_and_test_images_count():
    rows = [row("mach", 3.0, "0.001", test_loss=9.0), row("mach", 4.0, "0.003", test_loss=1.0)]
    (entry,) = shuffled.entries_of(rows)
    assert entry.chosen["test_loss"] == "9.0"


def test_equal_time_is_what_flat_takes(tmp_path):
    jobs = jobs_of(tmp_path, rates=(0.001, 0.003))
    rows = [
        row("flat", 8.0, "0.001", cpu=60), row("flat", 7.5, "0.003", cpu=50),
        row("mach", 3.0, "0.001", cpu=25), row("mach", 4.0, "0.003", cpu=70),
    ]  # fmt: skip
    (longer,) = shuffled.equal_seconds(jobs, rows)
    # the least of each counts, other work slows some of them; the rate is that of the least loss
    assert (longer.name, longer.steps, longer.settings[-1]) == ("mach", 200, "0.001")
    assert longer.settings[longer.settings.index("--eval-every") + 1] == "200"
    assert shuffled.equal_seconds(jobs, rows[1:]) == []  # a rate of flat is not there yet
    rows[2]["cpu_seconds"] = "45"
    assert shuffled.equal_seconds(jobs, rows) == []  # near enough
    assert all(entry.longer is entry.chosen for entry in shuffled.entries_of(rows))


def test_page_and_figure(tmp_path):
    rows = [
        row("flat", 8.0, "0.001", accuracy=0.001), row("flat", 8.5, "0.003"),
        row("flat", 8.2, seed=1, accuracy=0.002), row("mach", 4.0, cpu=20.0, accuracy=0.25),
        row("mach", 2.5, cpu=41.0, accuracy=0.75, steps=200),
    ]  # fmt: skip
    page = shuffled_page.document(rows, "x.png")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["mach", "flat"]  # by nats
    cells = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    assert cells[2:] == [
        "1", "0.001", "0.001", "25.0 %", "5.000", "20", "200", "75.0 %", "3.500", "41", "1.25", "1,234",
    ]  # fmt: skip
    assert "| 2 | 0.001 | 0.001, 0.003 | 0.2 ± 0.6 % | 9.100 ± 1.271 | 40 | 100 |" in lines[1]
    assert "## 4,608 classes, 100 steps of 64 images" in page
    assert "Guessing: 0.02%, 8.436 nats" in page
    assert "Not trained yet: `factored-oracle`" in page
    assert "At one learning rate so far, which may not be theirs: `mach`." in page
    assert "Equal time not trained yet" not in page
    assert "Other work shared the cores" in page
    assert page.endswith("Not trained yet: 36,864 and 184,320 classes.")
    assert "--steps 100 --rates 0.001 0.003 --seeds 0 1\n" in page
    figure = shuffled_figure.draw(rows)
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["flat", "mach"]
    assert left.get_title(loc="left") == "4,608 classes, 100 steps"
    assert right.get_legend() is not None


def quick(tmp_path, **options):
    return compare.ImageFlags(
        shuffled_labels=True, quick=True, threads=1, contenders=("mach", "flat"), out=tmp_path / "out",
        runs=tmp_path / "runs", **options,
    )  # fmt: skip


@pytest.fixture
def pretended(monkeypatch):
    """A trainer and a scorer that only write what a run leaves; flat takes thrice the time of others."""
    trained, scored = [], []

    def train(job, threads):
        trained.append((job.name, job.settings[-1], job.steps))
        (job.folder / "best").mkdir(parents=True)
        (job.folder / "best" / "state.json").write_text("{}")
        config = {"computed_on": "cpu, 1 threads", "torch": "2", "parameters": 9, "head_parameters": 4}
        (job.folder / "config.json").write_text(json.dumps({**config, "training_images": 7}))
        line = {"step": job.steps, "minutes": 1.0, "images": 9, "memory/peak": 2.0, "loss/train": 1.0}
        line |= {"loss/validation": 5.0, "accuracy/overall": 0.5, "accuracy/group": 0.5}
        (job.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return 0

    def score(job, threads):
        scored.append(job.name)
        cpu = job.steps * (3.0 if job.name == "flat" else 1.0)
        (job.folder / shuffled.CPU).write_text(json.dumps([cpu]))
        (job.folder / shuffled.TEST).write_text(json.dumps({"loss": 6.0, "accuracy": {"overall": 0.25}}))
        return 0

    return train, score, trained, scored


def test_what_is_recorded_is_not_trained_again(tmp_path, pretended, capsys):
    train, score, trained, scored = pretended
    config = quick(tmp_path, rates=(0.001, 0.01))
    compare.main_shuffled(config, train, score)
    assert trained == [
        ("mach", "0.01", 12), ("flat", "0.01", 12), ("mach", "0.001", 12), ("flat", "0.001", 12),
        ("mach", "0.01", 36),
    ]  # fmt: skip
    assert len(scored) == 5
    assert "test_accuracy" in (tmp_path / "out" / "heads_shuffled.csv").read_text()
    compare.main_shuffled(config, train, score)
    assert len(trained) == 5
    (tmp_path / "out" / "heads_shuffled.md").unlink()
    compare.main_shuffled(quick(tmp_path, redraw=True), train, score)
    assert "| 36 |" in (tmp_path / "out" / "heads_shuffled.md").read_text()


@pytest.mark.slow
def test_real_runs_are_trained_scored_and_timed(tmp_path):
    compare.main_shuffled(quick(tmp_path, rates=(0.001,), max_minutes=0.001))
    (row,) = shuffled.record_of_scores(tmp_path / "out" / "heads_shuffled.csv").rows()
    assert row["contender"] == "mach"
    assert float(row["cpu_seconds"]) > 0.1
    assert 0 < float(row["test_loss"]) < 20


def test_bad_flags_are_named(tmp_path):
    with pytest.raises(UserError, match="--image-size, --backbone: for --shuffled-labels only"):
        compare.ImageFlags(image_size=50, backbone="resnet18")
    with pytest.raises(UserError, match="--rates must be at least one number, all positive"):
        quick(tmp_path, rates=(0.0,))
    with pytest.raises(UserError, match="--contenders grouped-film: expected some of factored-oracle"):
        compare.ImageFlags(shuffled_labels=True, contenders=("grouped-film",))
    with pytest.raises(UserError, match="--only: "):
        compare.ImageFlags(shuffled_labels=True, only=("shape=none",))
    with pytest.raises(UserError, match="--redraw: no row in"):
        compare.main_shuffled(quick(tmp_path, redraw=True))


def test_a_fork_ends_as_the_command_does():
    from scripts.common.runs import fork

    def refused():
        raise SystemExit(2)

    assert fork(lambda: 0, 1) == 0
    assert fork(refused, 1) == 2
    assert fork(lambda: [][0], 1) == 1


def test_the_seconds_of_a_stopped_run_count(tmp_path, pretended):
    train, score, *_ = pretended
    job = jobs_of(tmp_path)[0]

    def stopped(job, threads):
        job.folder.mkdir(parents=True)
        raise SystemExit(130)

    with pytest.raises(SystemExit):
        shuffled.scoring(stopped, score)(job, 1)
    spent = json.loads((job.folder / shuffled.CPU).read_text())
    assert len(spent) == 1
    scored = []
    assert shuffled.scoring(train, lambda job, threads: scored.append(job) or 0)(job, 1) == 0
    assert len(json.loads((job.folder / shuffled.CPU).read_text())) == 2
    assert scored == [job]
