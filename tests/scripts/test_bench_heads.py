"""The benchmark runs, reports every contender and refuses bad flags in one line."""

import json

import pytest

from scripts.bench_heads import Config, contenders, tables
from scripts.common.head_steps import Work
from sqrtvocab import HEADS, GroupedLinearHead


def test_a_small_shape(call, tmp_path):
    flags = ("--tables", "train", "--shape", 64, 16, 400, "--repeats", 1)
    result = call("bench_heads", *flags, "--json", tmp_path / "heads.json")
    assert result.returncode == 0, result.stderr
    (table,) = json.loads((tmp_path / "heads.json").read_text())["tables"]
    rows = {row["name"]: row for row in table["rows"]}
    assert {"flat", "flat, chunked", "grouped", "grouped-linear", "adaptive", "bound: two GEMMs"} <= set(rows)
    assert rows["flat"]["parameters"] == 400 * 17
    assert rows["flat"]["megabytes"] > rows["grouped"]["megabytes"] > 0
    assert all(name in result.stdout for name in rows)


def test_some_contenders_of_a_table():
    """Where memory does not hold all, parts are raced, each with what it is compared with."""
    (table,) = tables(Config(tables="train", shape=(8, 4, 9), contenders=("flat", "bound: two GEMMs")))
    assert list(table.contenders) == ["flat", "bound: two GEMMs"]


def test_a_head_that_joins_the_registry_is_measured(monkeypatch):
    monkeypatch.setitem(HEADS, "mine", GroupedLinearHead)
    assert {"mine", "mine, tied"} <= set(contenders(Work(64, 16, 400)))
    titles = [table.title for table in tables(Config(tables="decode", quick=True))]
    assert "decode mine, peaked, N=32 d=512 V=184,320" in titles
    assert "factored" not in contenders(Work(64, 16, 400))  # which must know how the classes are made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", 0), "--repeats must be at least 1"),
        (("--shape", 0, 1, 1), "--shape must be positive"),
        (("--json", "/no/such/folder/x.json"), "--json: no folder /no/such/folder"),
        (("--contenders", "flat"), "--contenders: only for --tables train"),
        (("--tables", "train", "--contenders", "flut"), "--contenders 'flut': expected some of flat, "),
        (("--bogus",), "Unrecognized options: --bogus"),
    ],
)
def test_bad_flags(call, arguments, message):
    result = call("bench_heads", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_uneven_groups_take_part_by_every_head_with_groups():
    titles = [table.title for table in tables(Config(tables="uneven", shape=(32, 8, 900)))]
    assert [title.split(",")[0] for title in titles if "tied" in title] == ["uneven grouped-linear"]
    for table in tables(Config(tables="uneven", shape=(32, 8, 900))):
        assert len(table.contenders) == 4
        for maker, arguments in table.contenders.values():
            maker(*arguments)()
