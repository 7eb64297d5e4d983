"""The comparison on characters: chosen on the validation families, scored once on the test families."""

import csv
from pathlib import Path

import pytest

from scripts.characters.contenders import contenders_of
from scripts.figure_characters import CharacterFlags, Experiment, main
from scripts.reports.characters import best_rows, document
from sqrtvocab.errors import UserError


def row(
    contender: str, rate: str, accuracy: float, seed: str = "0", steps: str = "10", **further: str
) -> dict:
    values = {
        "loss": "1",
        "group_accuracy": "0.5",
        "seconds": "60",
        "peak_gib": "1",
        "parameters": "7",
        "machine": "m",
    }
    settings = f"--data hangul/ --max-steps {steps} --lr {rate} --grey"
    flags = contenders_of("hangul")[contender].flags
    named = {"contender": contender, "seed": seed, "settings": settings, "flags": flags, "steps": steps}
    return values | named | {"accuracy": str(accuracy)} | further


def test_the_rate_is_chosen_by_the_first_seed_and_by_validation():
    rows = [
        row("flat", "0.001", 0.2, test_accuracy="0.9"),
        row("flat", "0.01", 0.3, test_accuracy="0.1"),
        row("flat", "0.001", 0.8, seed="1"),
        row("flat", "0.01", 0.4, seed="1"),
        row("flat", "0.001", 0.5, steps="20"),
    ]
    chosen = [(each["settings"].split()[-2], each["steps"], each["seed"]) for each in best_rows(rows)]
    assert chosen == [("0.01", "10", "0"), ("0.01", "10", "1"), ("0.001", "20", "0")]
    page = document("hangul", rows, contenders_of("hangul"), "curves.png", Path("none.png"))
    assert "| flat | 2 | 0.01 of 2 | 10 | 35.00 ± " in page
    assert "| 10.00 % |" in page
    assert "Not trained yet: prototype" in page


@pytest.mark.slow
def test_a_trained_comparison_is_not_trained_again(tmp_path, monkeypatch, capfd):
    flags = {"quick": True, "threads": 1, "runs": tmp_path / "runs", "out": tmp_path / "out"}
    flags |= {"rates": (0.001, 0.01), "eval_images": 20, "batch_size": 8, "image_size": 16, "backbone": "cnn"}
    flags |= {"contenders": ("grouped-index",), "data": tmp_path / "letters"}
    monkeypatch.setenv("SQRTVOCAB_CACHE", str(tmp_path / "cache"))
    main(CharacterFlags(**flags))
    with (tmp_path / "out" / "characters_letters.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(each["settings"].split("--lr ")[1].split()[0] for each in rows) == ["0.001", "0.01"]
    assert all(float(each["core_seconds"]) > 0 for each in rows)
    scored = [each for each in rows if each["test_accuracy"]]
    assert len(scored) == 1  # the better one only
    assert float(scored[0]["accuracy"]) == max(float(each["accuracy"]) for each in rows)
    assert (tmp_path / "out" / "characters_letters.png").stat().st_size

    def refused(*_):
        raise AssertionError

    monkeypatch.setattr("scripts.figure_characters.launch", refused)
    monkeypatch.setattr("scripts.figure_characters.train", refused)
    main(CharacterFlags(**flags))


def test_further_seeds_are_for_the_best(tmp_path):
    config = CharacterFlags(seeds=(0, 1, 2), best=1, steps=10, contenders=("flat", "mach"), data=tmp_path)
    experiment = Experiment(config, tmp_path)
    for each in (row("flat", "0.001", 0.2), row("flat", "0.01", 0.3), row("mach", "0.01", 0.1)):
        experiment.record.keep(dict.fromkeys(experiment.record.values, "") | each | {"data_bytes": "0"})
    jobs = experiment.further_jobs({"flat": 10, "mach": 10})
    assert [(job.name, job.seed) for job in jobs] == [("flat", 1), ("flat", 2)]
    assert all("--lr 0.01" in " ".join(job.settings) for job in jobs)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"contenders": ("none",)}, "--contenders none"),
        ({"rates": ()}, "--rates"),
        ({"minutes": 0.0}, "--minutes"),
    ],
)
def test_bad_input_names_the_flag(change, expected):
    with pytest.raises(UserError, match=expected):
        CharacterFlags(**change)


def test_the_radicals_are_those_of_the_set(tmp_path):
    experiment = Experiment(CharacterFlags(script="han", data=tmp_path, steps=1), tmp_path)
    job = experiment.job("grouped-radical", 0, 1, 0.1)
    flags = job.flags()
    assert flags[flags.index("--taxonomy") + 1] == str(tmp_path / "taxonomy.csv")
    assert str(tmp_path) not in " ".join(job.key)
