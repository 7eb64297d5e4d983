"""A judge in a folder: a model made here that always says the same, asked without any server."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm.judge.local import LocalJudge
from sqrtvocab.errors import UserError

GRADE = json.dumps({"grammar": 7, "creativity": 6.5, "consistency": 8, "plot": 5, "age": 6})
VOCABULARY = ("<unk>", "<end>", "<answer>", GRADE, "student", "Assistant", ":")
FOLLOWS = {"<answer>": GRADE, ":": "student", GRADE: "<end>", "student": "<end>"}  # what the model says after
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}<answer>"


def save_judge(folder, template=TEMPLATE, context=400):
    """A GPT-2 whose blocks do nothing, so that the last word alone decides on the next one."""
    number = {word: index for index, word in enumerate(VOCABULARY)}
    core = Tokenizer(models.WordLevel(number, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="<end>", additional_special_tokens=["<answer>"]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    v = len(VOCABULARY)
    config = GPT2Config(
        vocab_size=v, n_embd=v, n_layer=1, n_head=1, n_positions=context, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name == "transformer.ln_f.weight" else 0.0)
        model.transformer.wte.weight.copy_(torch.eye(v))
        for before, after in FOLLOWS.items():
            model.lm_head.weight[number[after], number[before]] = 10.0
    model.save_pretrained(folder)
    return folder


def question(text="Dear student"):
    return [{"role": "user", "content": text}]


def test_it_answers_in_the_form_of_its_template(tmp_path):
    judge = LocalJudge(save_judge(tmp_path), torch.device("cpu"))
    assert judge.ask(question()) == GRADE
    plain = LocalJudge(save_judge(tmp_path / "plain", template=None), torch.device("cpu"))
    assert plain.ask(question()) == "student"  # after "Assistant:"


def test_sampled_answers_can_be_had_again_and_differ_when_asked_again(tmp_path):
    save_judge(tmp_path)
    judges = [LocalJudge(tmp_path, torch.device("cpu"), seed=3) for _ in range(2)]
    for judge in judges:
        judge.model.generation_config.update(do_sample=True, temperature=30.0)
    torch.manual_seed(1)
    ours = [judges[0].ask(question()) for _ in range(4)]
    torch.manual_seed(2)
    assert [judges[1].ask(question()) for _ in range(4)] == ours
    assert len(set(ours)) > 1


def test_what_cannot_judge(tmp_path):
    with pytest.raises(UserError, match=r"--judge .*: not a model that transformers can load"):
        LocalJudge(tmp_path, torch.device("cpu"))
    short = LocalJudge(save_judge(tmp_path / "short", context=8), torch.device("cpu"))
    with pytest.raises(UserError, match="it looks at 8 tokens, and a question has 10; take another model"):
        short.ask(question("one " * 9))


def test_the_command_asks_no_server(run, complaint, finished, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(finished, out)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once there was a fox.\nThe second one\n")
    flags = (out, "--prompts", prompts, "--max-tokens", 8, "--device", "cpu", "--judge")
    result = run("judge", *flags, save_judge(tmp_path / "judge"), OPENAI_API_KEY="")
    assert result.code == 0, result.err
    assert "2 of 2 grades readable" in result.out
    document = json.loads((out / "judge.json").read_text())
    assert document["scores"]["plot"] == {"mean": 5.0, "low": 5.0, "high": 5.0}
    assert document["judge"] == str(tmp_path / "judge")
    line = complaint(run("judge", *flags, tmp_path / "none", "--model", "m"))
    assert line == (
        f"judge_lm: --judge {tmp_path}/none: no such folder; --model is a judge on a server, --judge one in "
        "a folder: drop one of them"
    )
