"""`eval_lm`, `sample_lm` and `judge_lm` on a small run, against what can be computed by hand."""

import json
import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lm.config import EvalConfig, JudgeConfig, SampleConfig
from lm.evaluate import distinct, evaluate, repetition, some_windows
from lm.generate import continue_stories, fitting, stream_story
from lm.model import CompressedLM, CompressedLMConfig
from lm.stories.openings import OPENINGS
from lm.text.corpus import Tokens, open_corpus
from lm.text.sources import open_source
from lm.text.tokenizer import load_tokenizer
from sqrtvocab.errors import UserError
from sqrtvocab.flags import as_text
from sqrtvocab.settings import read_config


@pytest.fixture
def model(finished) -> CompressedLM:
    return CompressedLM.from_pretrained(finished / "best").eval()


@pytest.fixture
def tokenizer(finished):
    return load_tokenizer(finished / "tokenizer.json")


# ---- eval_lm ----


def test_eval_is_what_the_dense_distribution_says(run, finished, model, tokenizer, story_file, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    result = run("eval", out, "--samples", 3, "--max-tokens", 20, "--device", "cpu", "--batch-size", 3)
    assert result.code == 0, result.err
    document = json.loads((out / "eval.json").read_text())
    source = open_source(str(story_file), 0.1, "text", print)
    tokens = open_corpus(source, tokenizer, tmp_path / "cache", print).validation
    ids = torch.from_numpy(tokens.ids.astype("int64"))
    total, right, predictions = 0.0, 0, len(ids) - 1
    for start in range(0, predictions, 32):  # the windows of the run's sequence length
        window = ids[start : start + 33]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        total += F.nll_loss(logits, window[1:], reduction="sum").item()
        right += (logits.argmax(-1) == window[1:]).sum().item()
    assert document["tokens"] == predictions
    assert document["loss"] == pytest.approx(total / predictions, rel=1e-5)
    assert document["perplexity"] == pytest.approx(math.exp(total / predictions), rel=1e-4)
    assert document["token_accuracy"] == pytest.approx(right / predictions)
    text_bytes = sum(len(story.encode()) for story in source.validation)
    assert document["bits_per_byte"] == pytest.approx(total / math.log(2) / text_bytes, rel=1e-5)
    assert document["samples"] == 3
    assert 0 < document["distinct_1"] <= document["distinct_2"] <= 1
    assert "bits per byte" in result.out


def test_eval_on_other_text(run, finished, tmp_path):
    text = tmp_path / "other.txt"
    text.write_text("zq xv kj. " * 200)
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    before = json.loads((out / "last" / "state.json").read_text())["metrics"]["loss/validation"]
    result = run("eval", out, "--data", text, "--samples", 0, "--device", "cpu", "--cache", tmp_path / "c")
    assert result.code == 0, result.err
    assert json.loads((out / "eval.json").read_text())["loss"] > before


def test_evaluation_by_groups(model, alone):
    ids = torch.randint(300, (200,)).numpy().astype("uint16")
    tokens = Tokens(ids, torch.bincount(torch.from_numpy(ids.astype("int64")), minlength=300).numpy(), 1, 500)
    partition = model.head.partition
    result = evaluate(model, tokens, some_windows(tokens, 32, 0), 32, partition, alone, 2)
    inputs, targets = tokens.batch(range(7), 32)
    with torch.no_grad():
        hidden = model.backbone(input_ids=inputs).last_hidden_state
        groups = partition.split(targets.clamp(min=0))[0]
        right = (model.head.group(hidden).argmax(-1) == groups)[targets != -100]
    assert result.tokens == 199
    assert result.group_accuracy == pytest.approx(right.float().mean().item())
    assert result.loss == pytest.approx(result.group_loss + result.member_loss)
    assert not model.training


def test_windows_are_spread_and_the_same_each_time(alone):
    tokens = Tokens(torch.zeros(1001).numpy().astype("uint16"), torch.zeros(1).numpy(), 1, 1)
    assert some_windows(tokens, 10, 0) == list(range(100))
    assert some_windows(tokens, 10, 50) == [0, 20, 40, 60, 80]
    assert some_windows(tokens, 10, 1) == [0]


def test_distinct_and_repetition():
    assert distinct(["a b a b"], 1) == 0.5
    assert distinct(["a b a b", "A b!"], 2) == pytest.approx(2 / 4)
    assert repetition(["a b c d a b c d"]) == pytest.approx(1 / 5)
    assert repetition(["a b c d e f"]) == 0
    assert math.isnan(repetition(["a b"]))
    assert math.isnan(distinct([], 1))


# ---- sample_lm ----


def test_sample_streams_the_story(run, finished, model, tokenizer):
    flags = (finished, "--prompt", "Once upon a", "--max-tokens", 15, "--device", "cpu")
    greedy = run("sample", *flags, "--temperature", 0)
    assert greedy.code == 0, greedy.err
    ids = torch.tensor([[tokenizer.end, *tokenizer.encode("Once upon a")]])
    for _ in range(15):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)], 1)
        if ids[0, -1] == tokenizer.end:
            break
    assert greedy.out == tokenizer.decode(ids[0].tolist()) + "\n"
    once, again, other = (run("sample", *flags, "--seed", seed, "--count", 2).out for seed in (1, 1, 2))
    assert once == again != other
    assert once.count("Once upon a") == 2


def test_a_story_may_have_characters_of_several_tokens(model, gpt2, backbone_of):
    pieces = []
    config = backbone_of("gpt2", gpt2.vocab_size)
    small = CompressedLM(CompressedLMConfig(text_config=config)).eval()
    stream_story(small, gpt2, "fox 🦊 ", pieces.append, max_tokens=3, temperature=0, top_k=0)
    assert "".join(pieces).startswith("fox 🦊 ")
    assert all(not piece.endswith("\ufffd") for piece in pieces[:-1])


def test_stories_side_by_side_are_those_told_alone(model, tokenizer):
    openings = ["Once", "One day, a girl named"]
    options = {"max_tokens": 10, "temperature": 0.0}
    together = continue_stories(model, tokenizer, openings, **options)
    alone = [continue_stories(model, tokenizer, [opening], **options)[0] for opening in openings]
    assert together == alone
    state = torch.random.get_rng_state()
    sampled = continue_stories(model, tokenizer, openings, max_tokens=10, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert continue_stories(model, tokenizer, openings, max_tokens=10, seed=3) == sampled


def test_bad_input(run, complaint, finished, small_tokenizer, tmp_path):
    assert "not a run folder" in complaint(run("sample", tmp_path))
    line = complaint(run("sample", finished, "--prompt", "word " * 50, "--device", "cpu"))
    assert "--prompt: an opening of" in line
    assert "leaves no room: the model looks at 32" in line
    assert "--temperature must not be negative" in complaint(run("sample", finished, "--temperature", -1))
    line = complaint(run("sample", finished, "--temperature", "inf"))
    assert line == "sample_lm: --temperature must be a finite number, got inf"
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    small_tokenizer.save(out / "tokenizer.json")
    line = complaint(run("sample", out, "--device", "cpu"))
    assert "not the tokenizer that this model was trained with (400 tokens here, 300 in the model)" in line
    shutil.rmtree(out / "best")
    shutil.copy(finished / "config.json", out)
    assert "no checkpoint `best`" in complaint(run("eval", out))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ([1], "expected a JSON object, found a list"),
        ({}, "not the settings of a run of train_lm: the setting 'preset' is missing"),
        ({"hidden_size": "big"}, "the setting 'hidden_size' cannot be 'big'"),
        ({"lr": True, "cache": 5}, "the setting 'cache' cannot be 5; the setting 'lr' cannot be True"),
        ({"head": "magic"}, "--head magic: no head has this name"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"groups": None}, "the setting 'groups' cannot be None"),
    ],
)
def test_damaged_settings_of_a_run(run, complaint, finished, tmp_path, damage, says):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    settings = read_config(out)
    (out / "config.json").write_text(
        json.dumps({**settings, **damage} if damage and damage != [1] else damage)
    )
    for command in ("eval", "sample", "judge"):
        line = complaint(run(command, out, "--device", "cpu", OPENAI_API_KEY="k"))
        assert line.startswith(f"{command}_lm: {out / 'config.json'}: ")
        assert says in line


def test_prompts_that_are_no_text_and_seeds_that_are_too_large(tmp_path):
    with pytest.raises(UserError, match="--prompt is not UTF-8 at byte 3"):
        SampleConfig(tmp_path, prompt="caf\udce9")
    assert as_text("caf\udcc3\udca9") == as_text("café") == "café"  # in the locale C
    for kind in (SampleConfig, EvalConfig, JudgeConfig):
        with pytest.raises(UserError, match=r"--seed must be below 2\^63, got 9223372036854775808"):
            kind(tmp_path, seed=2**63)
        assert kind(tmp_path, seed=2**63 - 1).seed == 2**63 - 1


def test_the_coldest_is_greedy(gpt2, backbone_of):
    model = CompressedLM(CompressedLMConfig(text_config=backbone_of("gpt2", gpt2.vocab_size))).eval()
    cold, greedy = (
        continue_stories(model, gpt2, ["A fox"], max_tokens=4, temperature=temperature, top_k=0)
        for temperature in (1e-42, 0.0)
    )
    assert cold == greedy


def test_prompts_that_fit(gpt2, backbone_of):
    config = backbone_of("gpt2", gpt2.vocab_size)
    config.n_positions = 6
    model = CompressedLM(CompressedLMConfig(text_config=config)).eval()
    prompts = ["Once upon a time", "Once upon a time there"]  # 4 and 5 tokens, after an end
    assert fitting(prompts, gpt2, model) == prompts[:1]
    assert len(continue_stories(model, gpt2, prompts[:1], max_tokens=9)) == 1


def test_a_model_too_short_for_the_sample_prompts_is_scored(run, server, tiny, complaint, tmp_path):
    out = tmp_path / "r"
    assert run("train", *tiny, "--seq-len", 4, "--max-steps", 1, "--out", out).code == 0
    result = run("eval", out, "--samples", 2, "--tokens", 64, "--device", "cpu")
    assert result.code == 0, result.err
    assert "samples" not in json.loads((out / "eval.json").read_text())
    line = complaint(run("judge", out, "--device", "cpu", OPENAI_API_KEY="k", OPENAI_BASE_URL=server[0]))
    assert "--prompts (built in): an opening of" in line


# ---- judge_lm ----


def test_no_key_no_story(run, complaint, finished):
    line = complaint(run("judge", finished, OPENAI_API_KEY=""))
    assert "OPENAI_API_KEY is not set" in line
    assert not (finished / "judge.jsonl").exists()


def test_bad_out_of_the_judge(run, complaint, finished, tmp_path):
    for out, says in (
        (tmp_path / "x.json", "the scores go there; name the raw answers x.jsonl"),
        (tmp_path, "cannot be written (Is a directory)"),
        (tmp_path / "nodir" / "x.jsonl", "cannot be written (No such file or directory)"),
    ):
        line = complaint(run("judge", finished, "--out", out, "--device", "cpu", OPENAI_API_KEY="k"))
        assert line == f"judge_lm: --out {out}: {says}"


def test_the_scores_of_the_judge_overwrite_no_other_file(run, complaint, finished):
    before = (finished / "config.json").read_bytes()
    out = finished / "config.jsonl"
    line = complaint(run("judge", finished, "--out", out, "--device", "cpu", OPENAI_API_KEY="k"))
    assert line.startswith(f"judge_lm: --out {out}: the scores would go to {finished / 'config.json'}, which")
    assert (finished / "config.json").read_bytes() == before
    assert not out.exists()


def test_judge(run, finished, server, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once there was a fox.\n\nA GARBAGE truck\nThe third one\n")
    flags = (out, "--prompts", prompts, "--completions", 2, "--max-tokens", 8, "--device", "cpu")
    env = {"OPENAI_API_KEY": "right", "OPENAI_BASE_URL": server[0]}
    result = run("judge", *flags, **env)
    assert result.code == 0, result.err
    assert "4 of 6 grades readable" in result.out
    document = json.loads((out / "judge.json").read_text())
    assert document["scores"]["grammar"] == {"mean": 7.0, "low": 7.0, "high": 7.0}
    assert document["valid_rate"] == pytest.approx(4 / 6)
    board = EventAccumulator(str(out))
    board.Reload()
    assert board.Scalars("language: judge/plot")[-1].value == 5
    assert board.Scalars("language: judge/plot")[-1].step == 20
    assert "language: loss/train" in board.Tags()["scalars"]
    asked = len(server[1].read_text().splitlines())
    assert run("judge", *flags, **env).code == 0  # all is answered already
    assert len(server[1].read_text().splitlines()) == asked


def test_a_judge_that_breaks_off(run, finished, server, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A story that LOCKS.\n")
    flags = (out, "--prompts", prompts, "--max-tokens", 5, "--device", "cpu")
    result = run("judge", *flags, OPENAI_API_KEY="wrong", OPENAI_BASE_URL=server[0])
    assert result.code == 2
    assert "refuses (HTTP 401)" in result.err
    prompts.write_bytes(b"\xff")
    assert "not UTF-8 at byte 0" in run("judge", *flags, OPENAI_API_KEY="k").err
    prompts.write_text("\n")
    assert "no opening in it" in run("judge", *flags, OPENAI_API_KEY="k").err


def test_openings_stop_where_a_story_must_go_on():
    assert len(set(OPENINGS)) == 20
    assert all(not opening.endswith((".", "!", "?")) for opening in OPENINGS)
