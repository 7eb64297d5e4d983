"""The judge against a real server on the loopback that is slow, rude and wrong at times."""

import json
import math

import numpy as np
import pytest

from lm.judge.chat import ChatError, ChatServer, server_from_environment
from lm.judge.grade import RANGES, Item, Journal, judge_all, parse, summarise
from sqrtvocab.training import UserError

GOOD = {"grammar": 7, "creativity": 6.5, "consistency": 8, "plot": 5, "age": 6}


@pytest.fixture
def judge(server):
    return ChatServer(server[0], "right", "a-model", timeout=0.5, attempts=3, first_wait=0.01)


@pytest.fixture
def requests_about(server):
    def find(word):
        records = [json.loads(line) for line in server[1].read_text().splitlines()]
        return [record for record in records if word in record["messages"][0]["content"]]

    return find


def journal_of(path, *continuations) -> Journal:
    journal = Journal(path, {"run": "r"})
    for number, text in enumerate(continuations):
        journal.add({"number": number, "opening": f"Once {path} ", "continuation": text})
    return journal


def test_assess_first_then_grade(judge, requests_about, tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", "PLAIN")
    assert judge_all(judge, journal, 1) == []
    assert journal.items[0].scores == GOOD
    assess, grade = requests_about("PLAIN")
    assert assess["path"] == "/v1/chat/completions"
    assert assess["model"] == "a-model"
    assert f"Once {tmp_path / 'j.jsonl'} ***PLAIN" in assess["messages"][0]["content"]
    assert "Do not grade yet" in assess["messages"][0]["content"]
    assert [message["role"] for message in grade["messages"]] == ["user", "assistant", "user"]
    assert grade["messages"][1]["content"] == "A fine story, all in all."
    assert all(f'"{name}"' in grade["messages"][2]["content"] for name in RANGES)


def test_limits_outages_timeouts_and_nonsense_are_survived(judge, requests_about, tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", "FLAKY", "SLOW", "PROTOCOL")
    assert judge_all(judge, journal, 3) == []
    assert all(item.scores == GOOD for item in journal.items.values())
    assert len(requests_about("FLAKY")) == 6  # two refusals before each of the two answers


def test_one_retry_then_null(judge, requests_about, tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", "GARBAGE", "ONCE", "RANGE", "fine")
    judge_all(judge, journal, 2)
    scores = [item.scores for item in journal.items.values()]
    assert scores == [None, GOOD, None, GOOD]
    assert len([r for r in requests_about("GARBAGE") if r["grading"]]) == 2
    summary = summarise(list(journal.items.values()))
    assert (summary.stories, summary.valid, summary.valid_rate) == (4, 2, 0.5)
    assert summary.scores["plot"].mean == 5  # the missing ones are not zeros


def test_a_server_that_never_answers(judge, tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", "DEAD", "alive")
    (problem,) = judge_all(judge, journal, 2)
    assert "HTTP 503 after 3 attempts" in problem
    assert not journal.items[0].done
    assert journal.items[1].scores == GOOD


def test_nobody_listens():
    with pytest.raises(ChatError, match="refused after 2 attempts"):
        ChatServer("http://127.0.0.1:9/v1", "k", "m", attempts=2, first_wait=0.01).ask([])


def test_a_wrong_key_ends_it_at_once(server, requests_about, tmp_path):
    wrong = ChatServer(server[0], "wrong", "a-model", first_wait=0.01)
    with pytest.raises(UserError, match=r"refuses \(HTTP 401\) model 'a-model': .*wrong key") as error:
        judge_all(wrong, journal_of(tmp_path / "j.jsonl", "LOCKED"), 1)
    assert "OPENAI_API_KEY" in str(error.value)
    assert len(requests_about("LOCKED")) == 1


def test_concurrency_is_bounded(judge, requests_about, tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", *[f"CROWD {i}" for i in range(12)])
    ticks = []
    judge_all(judge, journal, 3, lambda: ticks.append(1))
    assert len(ticks) == 12
    assert max(record["busy"] for record in requests_about("CROWD")) in (2, 3)


def test_a_judgement_resumes(judge, requests_about, tmp_path):
    path = tmp_path / "j.jsonl"
    journal = journal_of(path, "RESUME one", "RESUME two", "RESUME three")
    journal.add({"number": 0, "assessment": "Read before."})
    journal.add({"number": 1, "assessment": "Read before."})
    journal.add({"number": 1, "grade": json.dumps(GOOD)})
    journal.close()
    with path.open("a") as file:
        file.write('{"number": 2, "assess')  # killed while writing
    journal = Journal(path, {"run": "r"})
    judge_all(judge, journal, 2)
    journal.close()
    assert all(item.scores == GOOD for item in journal.items.values())
    asked = [
        (r["messages"][0]["content"].split("***RESUME ")[1].split()[0], r["grading"])
        for r in requests_about("RESUME")
    ]
    assert sorted(asked) == [("one", True), ("three", False), ("three", True)]
    again = Journal(path, {"run": "r"})
    assert judge_all(judge, again, 2) == []
    assert len(requests_about("RESUME")) == 3
    with pytest.raises(UserError, match="a judgement with other settings"):
        Journal(path, {"run": "another"})


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "j.jsonl"
    records = [
        {"settings": {"run": "r"}},
        {"number": 0, "opening": "Once ", "continuation": "two\u2028lines"},
        {"number": 0, "assessment": "Fine.\x85Really."},
        {"number": 0, "grade": "ä\u2029"},
        {"number": 7, "grade": "of a story whose line is gone"},
    ]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(lines.encode() + '{"number": 0, "grade": "tör'.encode()[:-2])  # torn in the midst of ö
    (item,) = Journal(path, {"run": "r"}).items.values()
    assert item == Item(0, "Once ", "two\u2028lines", "Fine.\x85Really.", ["ä\u2029"])


def test_any_answer_can_be_kept(tmp_path):
    journal = journal_of(tmp_path / "j.jsonl", "a story")
    journal.add({"number": 0, "assessment": "half a smile \ud83d"})
    journal.close()
    assert Journal(tmp_path / "j.jsonl", {"run": "r"}).items[0].assessment == "half a smile \ud83d"


def test_other_settings_are_taken_until_the_judge_has_spoken(tmp_path):
    path = tmp_path / "j.jsonl"
    journal_of(path, "of the first call").close()
    journal = Journal(path, {"run": "corrected"})
    assert journal.items == {}
    journal.add({"number": 0, "opening": "", "continuation": "of the second"})
    journal.add({"number": 0, "assessment": "Fine."})
    journal.close()
    with pytest.raises(UserError, match="a judgement with other settings"):
        Journal(path, {"run": "r"})


@pytest.mark.parametrize("content", ['{"text": "something else"}\n', "A list of things\n", "x", "[1]\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"--out .*notes\.txt: not a file of judge_lm; name another one"):
        Journal(path, {"run": "r"})
    assert path.read_text() == content


@pytest.mark.parametrize("length", [0, 1, 9, 20])
def test_a_kill_in_the_midst_of_the_first_line(tmp_path, length):
    path = tmp_path / "j.jsonl"
    journal_of(path).close()
    line = path.read_bytes()
    path.write_bytes(line[:length] + b"\n" + line[:length])  # and once more
    journal_of(path, "a story").close()
    assert Journal(path, {"run": "r"}).items[0].continuation == "a story"


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"--out .*: cannot be written \(Is a directory\)"):
        Journal(tmp_path, {})
    with pytest.raises(UserError, match=r"--out .*nodir/x\.jsonl: cannot be written \(No such file"):
        Journal(tmp_path / "nodir" / "x.jsonl", {})


@pytest.mark.parametrize(
    ("raw", "fine"),
    [
        (json.dumps(GOOD), True),
        (f"```json\n{json.dumps(GOOD)}\n```", True),
        ("", False),
        ("7", False),
        ("[7, 6, 8, 5, 6]", False),
        (f"Here you are: {json.dumps(GOOD)}", False),
        (json.dumps({**GOOD, "grammar": 0}), False),
        (json.dumps({**GOOD, "age": 19}), False),
        (json.dumps({**GOOD, "plot": "5"}), False),
        (json.dumps({**GOOD, "plot": True}), False),
        (json.dumps({**GOOD, "plot": None}), False),
        (json.dumps({**GOOD, "humor": 3}), False),
        (json.dumps({k: v for k, v in GOOD.items() if k != "age"}), False),
        (json.dumps({**GOOD, "plot": math.nan}), False),
    ],
)
def test_only_strict_grades_are_read(raw, fine):
    assert parse(raw) == (GOOD if fine else None)


def test_intervals():
    rng = np.random.default_rng(0)
    values = rng.integers(1, 11, 200)
    items = [Item(i, "", "", "", [json.dumps({**GOOD, "plot": int(v)})]) for i, v in enumerate(values)]
    score = summarise(items).scores["plot"]
    assert score.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / math.sqrt(len(values))  # the normal approximation
    assert score.low == pytest.approx(values.mean() - half, abs=0.08)
    assert score.high == pytest.approx(values.mean() + half, abs=0.08)
    assert summarise(items).scores["age"].low == 6
    assert math.isnan(summarise([]).scores["plot"].mean)


def test_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        server_from_environment("m", 1.0)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert server_from_environment("m", 1.0).base_url == "https://api.openai.com/v1"
    for address in (
        "localhost:8000",
        "http://[bad",
        "http://",
        "http://a:port/v1",
        "http://a b/",
        "http://ä/v",
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        with pytest.raises(UserError, match=r"^OPENAI_BASE_URL '.*': expected an address such as"):
            server_from_environment("m", 1.0)
    for address in ("http://localhost:8000/v1", "https://[::1]:80/v1/", "HTTP://user:secret@host/a%20b?c=d"):
        monkeypatch.setenv("OPENAI_BASE_URL", f" {address}\n")
        assert server_from_environment("m", 1.0).base_url == address
    for key in ("two\nlines", "clé", "a\tb"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(UserError, match=r"^OPENAI_API_KEY: expected one line of plain ASCII") as error:
            server_from_environment("m", 1.0)
        assert key not in str(error.value)
