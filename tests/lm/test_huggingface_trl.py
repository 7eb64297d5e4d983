"""CompressedLM under TRL's SFTTrainer."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from lm.fused import fused_outputs
from lm.model import CompressedLM, CompressedLMConfig
from lm.stories.write import stories
from sqrtvocab.measure import allocated_by


@pytest.fixture
def tokenizer(small_tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=small_tokenizer.core, eos_token="<|endoftext|>")


def make(backbone_of, head, vocab_size) -> CompressedLM:
    torch.manual_seed(0)
    return CompressedLM(CompressedLMConfig(text_config=backbone_of("gpt2", vocab_size), head=head))


def arguments(folder: Path, **settings) -> SFTConfig:
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 8,
        "max_length": 32,
        "learning_rate": 1e-2,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
    }
    return SFTConfig(**{**usual, **settings})


def texts(count: int) -> Dataset:
    return Dataset.from_dict({"text": [story[:100] for story in stories("train", count)]})


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("head", ["grouped-linear", "grouped"])
def test_sft(backbone_of, tokenizer, tmp_path, head, lora):
    model = make(backbone_of, head, len(tokenizer))
    adapters = LoraConfig(r=4, target_modules=["c_attn"], modules_to_save=["head"], fan_in_fan_out=True)
    trainer = SFTTrainer(
        model,
        arguments(tmp_path),
        train_dataset=texts(32),
        eval_dataset=texts(3),
        processing_class=tokenizer,
        peft_config=adapters if lora else None,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert logs[-1]["loss"] < logs[0]["loss"] - 0.2
    batch = next(iter(trainer.get_eval_dataloader()))
    with torch.no_grad():
        loss = trainer.model.eval()(**batch).loss.item()
    assert after["eval_loss"] == pytest.approx(loss, rel=1e-4)
    assert after["eval_loss"] < before["eval_loss"]
    assert 0 < after["eval_mean_token_accuracy"] < 1
    if not lora:
        trainer.save_model(str(tmp_path / "saved"))
        loaded = CompressedLM.from_pretrained(tmp_path / "saved")
        assert loaded(**batch).loss.item() == pytest.approx(loss, rel=1e-4)


def test_what_is_logged_is_that_of_the_dense_distribution(backbone_of):
    model = make(backbone_of, "grouped-linear", 400)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    hidden, target = torch.randn(40, 50, 32), torch.randint(400, (40, 50))
    dense = model.head.log_prob(hidden)
    target[:, ::2] = dense.argmax(-1)[:, ::2]
    target[0] = -100
    got = fused_outputs(model.head, hidden, target, -100, None, ("log_probs", "entropy", "is_top1"))
    mask = target != -100
    assert torch.equal(got.label_mask, mask)
    log_probs = dense.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(got.log_probs, log_probs * mask, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.loss, -log_probs[mask].mean())
    assert torch.equal(got.is_top1, (dense.argmax(-1) == target) & mask)
    exact = -(dense.exp() * dense).sum(-1)[mask]
    drawn = got.entropy[mask]
    error = drawn.std() / len(drawn) ** 0.5
    assert abs(drawn.mean() - exact.mean()) < 4 * error < 0.3
    assert not got.entropy[~mask].any()


def test_sft_builds_nothing_v_wide_but_for_the_accuracy(backbone_of):
    vocabulary = 40_000
    model = make(backbone_of, "grouped", vocabulary)
    hidden, target = torch.randn(4, 64, 32), torch.randint(vocabulary, (4, 64))
    outputs = ("log_probs", "entropy")
    largest = allocated_by(
        lambda: fused_outputs(model.head, hidden, target, -100, None, outputs).loss.backward()
    ).largest
    assert largest <= 4 * vocabulary * 32  # a table, never the logits of the batch


def test_what_trl_may_not_ask(backbone_of):
    from trl.trainer.utils import add_fused_lm_head

    model = make(backbone_of, "grouped", 400)
    for settings, says in (
        ({"temperature": 0.7}, "temperature 0.7: a head gives log-probabilities at temperature 1"),
        ({"outputs": ("log_probs", "mean_logits")}, "mean_logits: only all V logits tell"),
    ):
        with pytest.raises(ValueError, match=says):
            add_fused_lm_head(model, **settings)
    add_fused_lm_head(model)
    ids = torch.randint(400, (2, 6))
    output = model(ids, labels=ids, fused_lm_head=True)
    torch.testing.assert_close(output.loss, model(ids, labels=ids).loss)
    assert output.entropy is output.is_top1 is None
