"""A model's folder in the hands of others: fresh processes, pipelines, the hub."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, MambaConfig, pipeline

from lm.generate import continue_stories
from lm.hub import command
from lm.model import CompressedLM, CompressedLMConfig
from lm.runs import load_run


def fresh(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has imported nothing of ours."""
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )


def result_of(script: str, **env: str) -> str:
    done = fresh(script, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADING = """
import sys
import torch
from transformers import AutoModelForCausalLM, pipeline
folder, other = {folder!r}, {other!r}
try:
    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    print("trust_remote_code=True" in str(error))
assert "lm.model" not in sys.modules
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
model.save_pretrained(other)  # and from there again
tell = pipeline("text-generation", folder, trust_remote_code=True)
(told,) = tell("Once upon", do_sample=False, max_new_tokens=12, return_full_text=False)
print(repr(told["generated_text"]))
import lm.model
assert type(model) is type(tell.model) is lm.model.CompressedLM
again = AutoModelForCausalLM.from_pretrained(other)
ids = torch.tensor([[0, 5, 7]])
assert torch.equal(again(ids).logits, model(ids).logits)
"""


@pytest.mark.slow
def test_a_fresh_process_loads_and_tells(finished, alone, tmp_path):
    folder = finished / "best"
    out = result_of(
        LOADING.format(folder=str(folder), other=str(tmp_path / "other")), HF_HOME=str(tmp_path / "home")
    )
    asked_for_trust, told = out.splitlines()
    assert asked_for_trust == "True"
    run = load_run(finished, "best", alone)
    (expected,) = continue_stories(run.model, run.tokenizer, ["Once upon"], max_tokens=12, temperature=0)
    assert told == repr(expected)
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == [
        "compressed_lm.py", "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_code_in_a_folder_says_what_to_install(finished, tmp_path):
    script = f"""
import sys
class Absent:  # as if it were not installed
    def find_spec(self, name, path, target=None):
        if name == "sqrtvocab":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained({str(finished / "best")!r}, trust_remote_code=True)
"""
    done = fresh(script, HF_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip().endswith("Run `pip install sqrtvocab`")


def test_the_tokenizer_of_a_run(finished, alone):
    tokenizer, run = AutoTokenizer.from_pretrained(finished / "best"), load_run(finished, "best", alone)
    text = "Once upon a time, Lily  ran — fast."
    assert tokenizer(text).input_ids == [run.tokenizer.end, *run.tokenizer.encode(text)]
    assert set(tokenizer(text)) == {"input_ids", "attention_mask"}
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == run.tokenizer.end
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.model_max_length == run.model.config.max_position_embeddings == 32


def test_a_pipeline_stops_at_the_end_and_stays_in_the_context(finished):
    tell = pipeline("text-generation", str(finished / "best"))
    torch.manual_seed(0)
    for _ in range(3):
        (told,) = tell("Once")  # no lengths given
        assert told["generated_text"].startswith("Once")
    model = tell.model
    end, lengths = model.generation_config.eos_token_id, []
    model.head.group.bias.data[model.head.partition.split(torch.tensor(end))[0]] = 30.0  # the end comes soon
    for _ in range(5):
        ids = model.generate(torch.tensor([[end, 5]]), do_sample=True)[0, 2:].tolist()
        assert end not in ids[:-1]
        lengths.append(len(ids))
    assert min(lengths) < 16 == model.generation_config.max_new_tokens


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neo"])
def test_the_common_names_of_a_configuration(backbone_of, kind, tmp_path):
    config = CompressedLMConfig(text_config=backbone_of(kind))
    CompressedLM(config).save_pretrained(tmp_path)
    for one in (config, AutoConfig.from_pretrained(tmp_path)):
        assert (one.vocab_size, one.hidden_size, one.num_hidden_layers) == (400, 32, 2)
        assert one.num_attention_heads == one.text_config.num_attention_heads
        assert one.max_position_embeddings == one.text_config.max_position_embeddings
        assert (one.bos_token_id, one.eos_token_id) == (0, 0)
        one.pad_token_id = 3
        assert one.text_config.pad_token_id == 3
    written = json.loads((tmp_path / "config.json").read_text())
    assert "vocab_size" not in written  # once, in the backbone's
    assert written["text_config"]["vocab_size"] == 400


def test_a_name_that_the_backbone_lacks():
    config = CompressedLMConfig(text_config=MambaConfig(vocab_size=400, hidden_size=32))
    assert config.hidden_size == 32
    assert not hasattr(config, "num_attention_heads")


def test_the_model_card(finished):
    from huggingface_hub import ModelCard

    text = (finished / "best" / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    state = json.loads((finished / "best" / "state.json").read_text())
    settings = json.loads((finished / "config.json").read_text())
    assert f"| loss/validation | {state['metrics']['loss/validation']:.4g} |" in text
    assert f"data: stories.txt, {settings['training_tokens']:,} tokens" in text  # no path of this machine
    assert str(finished.parent) not in text
    assert command(settings) in text


def test_the_command_of_a_card_gives_the_same_settings(finished, monkeypatch):
    import shlex

    import tyro

    from lm.config import TrainConfig
    from lm.presets import PRESETS

    settings = json.loads((finished / "config.json").read_text())
    for changes in ({}, {"preset": "quickstart", "prior": False, "tie_embeddings": True}):
        changed = {**settings, **changes, "data": "stories:70"}
        words = shlex.split(command(changed))
        assert words.pop(0) == "train_lm"
        read = tyro.cli(TrainConfig, args=words, default=PRESETS[changed["preset"]]).to_json()
        different = {name for name, value in read.items() if value != changed[name]}
        assert different <= {"out", "cache", "device"}


PUSHING = """
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = {folder!r}
HfApi().create_repo("me/model", exist_ok=True)
HfApi().upload_folder(folder_path=folder, repo_id="me/model")
model = AutoModelForCausalLM.from_pretrained("me/model", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("me/model")
model.head.group.bias.data.fill_(0.25)
model.push_to_hub("me/model")
tokenizer.push_to_hub("me/model")
again = AutoModelForCausalLM.from_pretrained("me/model", trust_remote_code=True)
print(float(again.head.group.bias.min()), tokenizer.eos_token)
"""


@pytest.mark.slow
def test_to_the_hub_and_back(finished, hub, tmp_path):
    address, log = hub
    out = result_of(
        PUSHING.format(folder=str(finished / "best")),
        HF_ENDPOINT=address,
        HF_HOME=str(tmp_path / "home"),
        HF_TOKEN="hf_of_nobody",
        HF_HUB_DISABLE_XET="1",
        HF_HUB_OFFLINE="0",
        NO_PROXY="127.0.0.1",
    )
    assert out.splitlines()[-1] == "0.25 <|endoftext|>"
    import urllib.request

    for name in (
        "compressed_lm.py",
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "README.md",
    ):
        with urllib.request.urlopen(f"{address}/me/model/resolve/main/{name}") as answer:
            content = answer.read()
        if name == "README.md":  # the card of the run has stayed
            assert b"loss/validation" in content
    assert "POST main" in log.read_text()
