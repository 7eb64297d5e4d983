"""CompressedLM under the real `Trainer` of transformers, against LlamaForCausalLM and hand-written steps."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPT2LMHeadModel, LlamaForCausalLM, Trainer, TrainingArguments

from lm.model import CompressedLM, CompressedLMConfig
from lm.trainer import HeadTrainer
from sqrtvocab.measure import allocated_by

V = 400


def make(backbone_of, head="grouped-linear", vocab_size=V, **settings) -> CompressedLM:
    torch.manual_seed(0)
    return CompressedLM(
        CompressedLMConfig(text_config=backbone_of("gpt2", vocab_size), head=head, **settings)
    )


def rows(count: int, length: int = 16, ignored: float = 0.0) -> list[dict[str, list[int]]]:
    """Rows of a language with one rule: each token is the one before it plus 1, modulo 10."""
    generator = torch.Generator().manual_seed(count)
    result = []
    for _ in range(count):
        ids = (torch.arange(length) + torch.randint(10, (1,), generator=generator)) % 10
        labels = ids.masked_fill(torch.rand(length, generator=generator) < ignored, -100)
        result.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return result


def arguments(folder: Path, **settings) -> TrainingArguments:
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "lr_scheduler_type": "constant",
    }
    return TrainingArguments(**{**usual, **settings})


def batch(data) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([row["input_ids"] for row in data]), torch.tensor([row["labels"] for row in data])


# ---- evaluation ----


@pytest.mark.parametrize("head", ["grouped-linear", "grouped", "flat", "adaptive"])
def test_evaluate_gives_the_loss(backbone_of, tmp_path, head):
    model, data = make(backbone_of, head), rows(7, ignored=0.3)
    metrics = Trainer(model, arguments(tmp_path), eval_dataset=data).evaluate()
    model.eval()
    losses = [
        model(*batch(part)[:1], labels=batch(part)[1]).loss.item() for part in (data[:3], data[3:6], data[6:])
    ]
    assert metrics["eval_loss"] == pytest.approx(np.average(losses, weights=[3, 3, 1]), rel=1e-5)


@pytest.mark.parametrize("output", ["tokens", "logits", "loss"])
def test_metrics_and_predict_get_what_was_asked_for(backbone_of, tmp_path, output):
    model, data = make(backbone_of, eval_output=output), rows(5)
    given = []
    trainer = Trainer(
        model, arguments(tmp_path), eval_dataset=data, compute_metrics=lambda seen: given.append(seen) or {}
    )
    assert "eval_loss" in trainer.evaluate()
    predicted = trainer.predict(data)
    ids, labels = batch(data)
    logits = model.eval()(ids).logits
    for seen in (given[0].predictions, predicted.predictions):
        if output == "tokens":
            assert np.array_equal(seen, logits.argmax(-1))
        elif output == "logits":
            np.testing.assert_allclose(seen, logits.detach(), rtol=1e-4, atol=1e-5)
        else:
            assert seen == ()
    assert np.array_equal(given[0].label_ids, labels)
    assert predicted.metrics["test_loss"] > 0


def test_predictions_build_nothing_v_wide(backbone_of, tmp_path):
    vocabulary = 40_000
    model, data = make(backbone_of, "grouped", vocabulary), rows(4, length=64)
    trainer = Trainer(model, arguments(tmp_path, max_steps=40, learning_rate=1e-2), train_dataset=data)
    trainer.train()  # so that few groups have to be opened
    largest = allocated_by(lambda: trainer.predict(data)).largest
    assert largest < 4 * 4 * 64 * vocabulary / 8  # an eighth of the logits of a batch
    model.config.eval_output = "logits"
    assert allocated_by(lambda: trainer.predict(data)).largest >= 4 * 3 * 64 * vocabulary


def test_an_output_that_is_none(backbone_of):
    with pytest.raises(ValueError, match=r"eval_output must be one of tokens, logits, loss; got 'best'"):
        make(backbone_of, eval_output="best")


# ---- training ----


def test_training_is_that_of_llama(backbone_of, tmp_path):
    """With the flat head, and uneven labels over accumulated batches: the losses that are logged."""
    theirs = LlamaForCausalLM(backbone_of("llama"))
    settings = CompressedLMConfig(text_config=backbone_of("llama"), head="flat", head_options={"bias": False})
    ours = CompressedLM(settings)
    ours.backbone.load_state_dict(theirs.model.state_dict())
    ours.head.weight.data.copy_(theirs.lm_head.weight)
    data, logs = rows(32, ignored=0.5), []
    for model in (ours, theirs):
        trainer = Trainer(
            model,
            arguments(tmp_path, gradient_accumulation_steps=2),
            train_dataset=data,
            eval_dataset=data[:7],
        )
        trainer.train()
        trainer.evaluate()
        logs.append(
            [row[key] for row in trainer.state.log_history for key in ("loss", "eval_loss") if key in row]
        )
    assert len(logs[0]) == 5
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)


def test_accumulation_equals_a_large_batch(backbone_of, tmp_path):
    data, results = rows(16, ignored=0.5), []
    for size, accumulate in ((8, 1), (2, 4)):
        model = make(backbone_of, "grouped-linear")
        settings = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulate,
            "max_steps": 2,
        }
        Trainer(model, arguments(tmp_path, **settings), train_dataset=data).train()
        results.append(model.state_dict())
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("head", ["grouped-linear", "grouped", "flat"])
def test_label_smoothing_goes_through_the_head(backbone_of, tmp_path, head):
    model, data = make(backbone_of, head), rows(4, ignored=0.3)
    ids, labels = batch(data)
    with torch.no_grad():
        hidden = model.backbone(input_ids=ids).last_hidden_state
        target = F.pad(labels[:, 1:], (0, 1), value=-100)
        expected = model.head(hidden, target, label_smoothing=0.1).loss.item()
        logits = model.head.log_prob(hidden)
        dense = F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1).item()
    trainer = HeadTrainer(
        model, arguments(tmp_path, label_smoothing_factor=0.1, max_steps=1), train_dataset=data
    )
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-3)
    plain = Trainer(
        make(backbone_of, head),
        arguments(tmp_path, label_smoothing_factor=0.1, max_steps=1),
        train_dataset=data,
    )
    plain.train()  # the logits of `Trainer` itself: right, and V wide
    assert plain.state.log_history[0]["loss"] == pytest.approx(dense, rel=1e-3)


def test_label_smoothing_builds_nothing_v_wide(backbone_of, tmp_path):
    vocabulary = 40_000
    settings = {"label_smoothing_factor": 0.1, "max_steps": 1}
    largest = []
    for kind in (HeadTrainer, Trainer):
        trainer = kind(
            make(backbone_of, "grouped", vocabulary),
            arguments(tmp_path, **settings),
            train_dataset=rows(4, 64),
        )
        largest.append(allocated_by(trainer.train).largest)
    tables = 4 * vocabulary * 32
    assert largest[0] <= tables < 4 * 4 * 63 * vocabulary <= largest[1]


def test_a_trainer_of_heads_wants_a_head(backbone_of, tmp_path):
    with pytest.raises(
        TypeError, match="HeadTrainer trains a CompressedLM; a GPT2LMHeadModel goes with Trainer"
    ):
        HeadTrainer(GPT2LMHeadModel(backbone_of("gpt2")), arguments(tmp_path))


@pytest.mark.parametrize("name", ["reduction", "smoothing", "lables"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neo"])
def test_arguments_that_nobody_has(backbone_of, kind, name):
    model = CompressedLM(CompressedLMConfig(text_config=backbone_of(kind)))
    ids = torch.randint(V, (2, 6))
    with pytest.raises(TypeError, match=rf"neither CompressedLM nor its \w+Model takes '{name}'"):
        model(ids, labels=ids, **{name: "sum"})
    hidden = model(ids, labels=ids, output_hidden_states=True).hidden_states
    assert len(hidden) == 3
    smoothed = model.head(hidden[-1][:, :-1], ids[:, 1:], label_smoothing=0.2).loss
    torch.testing.assert_close(model(ids, labels=ids, label_smoothing=0.2).loss, smoothed)


def test_the_best_model_is_loaded_at_the_end(backbone_of, tmp_path):
    model = make(backbone_of)
    settings = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "learning_rate": 0.3,
    }  # fmt: skip
    trainer = Trainer(
        model, arguments(tmp_path, **settings), train_dataset=rows(16), eval_dataset=rows(4)
    )  # a rate at which it gets worse again
    trainer.train()
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert len(losses) == 3
    assert trainer.state.best_metric == min(losses)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses), rel=1e-5)


def test_resuming_gives_the_same_model(backbone_of, tmp_path):
    data = rows(32)
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    through = make(backbone_of, ordered=True)
    Trainer(through, arguments(tmp_path / "a", **settings), train_dataset=data).train()
    again = make(backbone_of, ordered=True)
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    trainer = Trainer(again, arguments(tmp_path / "b", **settings), train_dataset=data)
    trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    for name, weight in through.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight)
    loaded = CompressedLM.from_pretrained(tmp_path / "a" / "checkpoint-6")
    assert all(
        torch.equal(weight, through.state_dict()[name]) for name, weight in loaded.state_dict().items()
    )


def test_bfloat16(backbone_of, tmp_path):
    trainer = HeadTrainer(
        make(backbone_of),
        arguments(tmp_path, bf16=True, label_smoothing_factor=0.1),
        train_dataset=rows(16),
        eval_dataset=rows(4),
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] - 0.5
    assert trainer.evaluate()["eval_loss"] < losses[0]


@pytest.mark.slow
def test_compiled(backbone_of, tmp_path):
    logs = []
    for compiled in (False, True):
        trainer = Trainer(
            make(backbone_of),
            arguments(tmp_path, torch_compile=compiled, torch_compile_backend="aot_eager", max_steps=3),
            train_dataset=rows(16),
            eval_dataset=rows(6),
            compute_metrics=lambda seen: {
                "right": (seen.predictions[:, :-1] == seen.label_ids[:, 1:]).mean()
            },
        )
        trainer.train()
        metrics = trainer.evaluate()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        logs.append([*losses, metrics["eval_loss"], metrics["eval_right"]])
    assert logs[1] == pytest.approx(logs[0], rel=1e-3)


RANKS = """
    import sys
    import torch
    sys.path.insert(0, {tests!r})
    from conftest import backbone_config
    from test_huggingface import arguments, make, rows
    from lm.trainer import HeadTrainer

    model = make(backbone_config)
    settings = {{"per_device_train_batch_size": 2, "max_steps": 3, "label_smoothing_factor": 0.1}}
    data = rows(32, ignored=0.5)
    trainer = HeadTrainer(model, arguments({folder!r}, **settings), train_dataset=data, eval_dataset=data[:8])
    trainer.train()
    assert trainer.args.world_size == 2
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        torch.save((model.state_dict(), metrics["eval_loss"]), {folder!r} + "/result.pt")
"""


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(backbone_of, tmp_path):
    """Two ranks of two rows are one rank of four, however many labels each has."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RANKS.format(tests=str(Path(__file__).parent), folder=str(tmp_path))))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    weights, loss = torch.load(tmp_path / "result.pt")
    model, data = make(backbone_of), rows(32, ignored=0.5)
    trainer = HeadTrainer(
        model,
        arguments(tmp_path, max_steps=3, label_smoothing_factor=0.1, per_device_eval_batch_size=6),
        train_dataset=data,
        eval_dataset=data[:8],
    )
    trainer.train()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-4)
    assert loss == pytest.approx(trainer.evaluate()["eval_loss"], rel=0.05)  # the mean of other batches


# ---- peft ----


def test_lora_with_the_head(backbone_of, tmp_path):
    from peft import PeftModel

    base = make(backbone_of, "grouped-linear", ordered=True)
    base.save_pretrained(tmp_path / "base")
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    settings = LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], modules_to_save=["head"], fan_in_fan_out=True
    )
    model = get_peft_model(base, settings)
    trainer = HeadTrainer(
        model,
        arguments(tmp_path, max_steps=8, label_smoothing_factor=0.1),
        train_dataset=rows(16),
        eval_dataset=rows(4),
    )
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first - 0.5
    frozen = {name for name in before if name.startswith("backbone.") and "c_attn" not in name}
    trained = model.get_base_model().state_dict()
    assert frozen
    assert all(torch.equal(trained[name], before[name]) for name in frozen)

    ids = batch(rows(3))[0]
    model.eval()
    expected = model(ids).logits
    loss = model(ids, labels=ids).loss
    written = model.generate(input_ids=ids[:, :4], max_new_tokens=6, do_sample=False)
    with model.disable_adapter():
        assert not torch.allclose(model(ids).logits, expected, atol=0.1)
    model.save_pretrained(tmp_path / "adapter")
    fresh = PeftModel.from_pretrained(CompressedLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    for other in (fresh.eval(), fresh.merge_and_unload()):
        torch.testing.assert_close(other(ids).logits, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other(ids, labels=ids).loss, loss, rtol=1e-4, atol=1e-4)
        assert torch.equal(other.generate(input_ids=ids[:, :4], max_new_tokens=6, do_sample=False), written)
    assert type(other) is CompressedLM
    other.save_pretrained(tmp_path / "merged")
    merged = CompressedLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged.eval()(ids).logits, expected, rtol=1e-4, atol=1e-4)
