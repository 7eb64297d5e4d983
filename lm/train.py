"""Train a GPT-2, GPT-Neo or Llama on short stories, with any head.

    train_lm --preset quickstart                  # about a minute on two CPU cores
    train_lm --preset quickstart --head flat      # the same, with the ordinary head
    train_lm --preset paper-128                   # the paper's smallest model
    torchrun --nproc-per-node 2 -m lm.train       # on two GPUs
    tensorboard --logdir runs                     # watch
    sample_lm runs/lm-gpt2-64-grouped-linear      # listen

Everything random is a function of the seed and the step, and everything learnt is in the checkpoint, so a run
that was killed goes on with --resume auto as if nothing had happened.
"""

from __future__ import annotations

if __name__ == "__main__":  # first of all, so that `python -m lm.train --help` need not import torch
    from lm.cli import train_main

    raise SystemExit(train_main())

import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lm.build import build_model, head_cost, open_tokenizer, parameter_table
from lm.config import YOUNGER, TrainConfig
from lm.evaluate import evaluate, some_windows
from lm.generate import continue_stories, fitting
from lm.model import CompressedLM
from lm.runs import embedding_of, read_partition, save_model, write_partition
from lm.stories.openings import SAMPLE_PROMPTS
from lm.text.corpus import default_cache, open_corpus
from lm.text.sources import lasting_name, open_source
from lm.text.tokenizer import TextTokenizer, load_tokenizer
from sqrtvocab import Head, Partition, make_head
from sqrtvocab.training import (
    BatchPlan,
    Logbook,
    Runtime,
    StopWatch,
    Tally,
    UserError,
    exchange_gradients,
    find_checkpoint,
    learning_rate,
    markdown_table,
    not_finite,
    open_runtime,
    read_config,
    require_same,
    require_same_checkpoint,
    require_space,
    share_of_mean,
    write_json,
)

# What a resumed run must share with its beginning. The number of ranks may change if a step keeps its text.
SAME_RUN = (
    "head", "modulation", "rank", "grouping", "groups", "prior", "tie_embeddings", "adapter", "backbone",
    "hidden_size", "num_layers", "num_attention_heads", "seq_len", "dropout", "data_used", "tokenizer",
    "tokenizer_digest", "training_tokens", "sequences_per_step", "weight_decay", "seed",
)  # fmt: skip
MAY_CHANGE = ("lr", "schedule", "warmup_steps")  # on resuming, after a loss that was not finite, say
CLIP = 1.0  # the gradient's largest norm
SAMPLE_TOKENS = 120


def train(config: TrainConfig) -> None:
    """Run `train_lm`.

    Raises:
        UserError: for input that cannot be used.
        RunError: if the loss is not finite.
    """
    with open_runtime(config.device, config.precision, config.seed) as runtime, ExitStack() as stack:
        _train(config, runtime, stack)


def _train(config: TrainConfig, runtime: Runtime, stack: ExitStack) -> None:
    stop = StopWatch(config.max_minutes)  # the clock runs; signals are left to Python until the loop

    # --------------------------------------------------------------------------------------------------------
    # Data: the text in tokens, and which of them each step sees

    def say(line: str) -> None:
        if runtime.is_main:
            print(line, file=sys.stderr, flush=True)

    run = config.run_folder
    checkpoint = find_checkpoint(run, config.resume)  # first: nobody likes to hear "no" after tokenising
    require_same_checkpoint(checkpoint, run, runtime)
    saved = {} if checkpoint is None else read_config(run)
    cache = config.cache or default_cache()
    data = data_of(config, saved)
    source = open_source(data, config.valid_fraction, config.text_column, say)
    if config.data == "auto" and data != "auto":
        source = replace(source, note=saved.get("data_note", ""))
    if has_own_tokenizer(config, saved, run):
        tokenizer = replace(load_tokenizer(run / "tokenizer.json"), name=config.tokenizer)
    else:
        tokenizer = open_tokenizer(config.tokenizer, source, cache)
    corpus = open_corpus(source, tokenizer, cache, say)
    length = config.seq_len
    if corpus.train.windows(length) < runtime.world_size:
        raise UserError(
            f"--seq-len {length}: longer than the training text, which has {len(corpus.train.ids):,} tokens"
        )
    plan = BatchPlan(
        corpus.train.windows(length),
        config.batch_size,
        config.accumulate,
        config.seed,
        runtime.rank,
        runtime.world_size,
    )
    total_steps = min(math.ceil(config.epochs * plan.steps_per_epoch), config.max_steps or sys.maxsize)
    validation = some_windows(corpus.validation, length, config.eval_tokens)

    # --------------------------------------------------------------------------------------------------------
    # Model and optimiser

    vectors = None
    if config.embeddings is not None and checkpoint is None:  # a run to go on with has its groups already
        vectors = embedding_of(config.embeddings, tokenizer, runtime)
        say(f"clustering the tokens by the embeddings of {config.embeddings}: some seconds")
    model, partition = build_model(config, tokenizer, corpus.train.counts, vectors)
    parameters = parameter_table(model)
    if config.checkpoint_activations:
        model.activation_checkpointing_enable({"use_reentrant": False})
    cast(nn.Module, model).to(runtime.device)
    partition.to(runtime.device)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay), lr=config.lr, betas=(0.9, 0.95), fused=True
    )
    scaler = runtime.scaler()

    # --------------------------------------------------------------------------------------------------------
    # Run folder: a new one, or one to go on with

    settings = {
        **config.to_json(),
        "data_used": lasting_name(source.name),
        "data_note": source.note,
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "groups": partition.num_groups,
        "training_tokens": len(corpus.train.ids),
        "sequences_per_step": plan.effective_batch,
        "total_steps": total_steps,
        "parameters": parameters["total"],
        "head_parameters": parameters["head"],
        "computed_on": runtime.describe(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    changes: list[str] = []
    step, minutes, best = 0, 0.0, math.inf
    if checkpoint is not None:
        used = lasting_name(str(saved.get("data_used")))  # older runs have it as it was typed
        require_same({**YOUNGER, **saved, "data_used": used}, settings, SAME_RUN, run)
        changes = [
            f"{key} from {saved.get(key)} to {settings[key]}"
            for key in MAY_CHANGE
            if saved.get(key) != settings[key]
        ]
        step, minutes = checkpoint.state["step"], checkpoint.state["minutes"]
        best = math.inf if checkpoint.state["best"] is None else checkpoint.state["best"]
        checkpoint.load_weights(model)
        partition = read_partition(run, model.head, partition.num_groups).to(runtime.device)
        training = checkpoint.load_training()
        optimizer.load_state_dict(training["optimizer"])
        if training["scaler"]:  # empty if the run has not been in float16 so far
            scaler.load_state_dict(training["scaler"])
    # At most there are `last`, the one before it and a draft, each with Adam's two moments, and `best` twice.
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    require_space(run, 11 * weights + (64 << 20))
    runtime.barrier()  # all ranks have looked before the first one writes
    if runtime.is_main:  # config.json first: it makes the folder a run, which --resume auto goes on with
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / "config.json", settings)
        tokenizer.save(run / "tokenizer.json")
        write_partition(run, model.head, partition)
    book = Logbook(run, start_step=step, enabled=runtime.is_main)
    book.text("config", markdown_table(settings))
    book.text("parameters", markdown_table(parameters))

    tokens_at_once = config.batch_size * length
    with torch.device("meta"):
        flat = make_head("flat", config.hidden_size, tokenizer.vocab_size)
    for name, value in {
        "run": f"{run}, from step {step:,}",
        "device": runtime.describe(),
        "data": f"{source.name}: {corpus.train.documents:,} documents, {len(corpus.train.ids):,} tokens to "
        f"train on, {len(corpus.validation.ids):,} to validate"
        + (f" ({source.note})" if source.note else ""),
        "tokenizer": f"{tokenizer.name}, {tokenizer.vocab_size:,} tokens",
        "backbone": f"{config.backbone}, hidden {config.hidden_size}, {config.num_layers} layers, "
        f"{config.num_attention_heads} heads",
        "head": _describe_head(config, model.head, partition),
        "costs": head_cost(model, corpus.train.counts).describe(tokens_at_once, "token"),
        "flat costs": flat.cost().describe(tokens_at_once, "token"),
        "parameters": "; ".join(f"{part} {count:,}" for part, count in parameters.items()),
        "steps": f"{total_steps:,} of {plan.effective_batch * length:,} tokens; "
        f"{plan.steps_per_epoch:,} an epoch",
        "watch": f"tensorboard --logdir {run.parent}",
    }.items():
        book.say(f"{name:<11}{value}")
    if changes:
        book.say(f"{'changed':<11}{', '.join(changes)}")
    if step >= total_steps:
        book.say(
            f"nothing to do: the run has its {total_steps:,} steps; --epochs or --max-steps can add more"
        )
        book.close()
        return

    # --------------------------------------------------------------------------------------------------------
    # The loop

    stack.enter_context(stop)  # from here on Ctrl-C finishes the step; before, it just ends the command
    model.train()
    learner: nn.Module = model
    if config.compile:
        learner = cast(
            nn.Module, torch.compile(model)
        )  # a wrapper: `model` itself stays as it is, for generate()
    if runtime.world_size > 1:
        learner = DistributedDataParallel(learner, forward_sync_buffers=False, gradient_as_bucket_view=True)
    batches = iter(plan.batches(step, total_steps))
    tally = Tally(("loss", "group_loss", "member_loss"), runtime)
    log_every = 1 if runtime.device.type == "cpu" else 20  # reading numbers off a GPU makes it wait
    first_step, began = step, time.monotonic()
    window_tokens, window_began = 0, time.perf_counter()
    metrics: dict[str, float] = {}
    reason = None

    def state() -> dict[str, object]:
        scored = best if math.isfinite(best) else None  # None: not evaluated yet
        return {"step": step, "minutes": minutes, "best": scored, "metrics": metrics}

    def save_last() -> None:
        training = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        save_model(run, "last", model, state(), training)

    while step < total_steps and reason is None:
        runtime.seed_step(step)
        lr = learning_rate(
            step,
            peak=config.lr,
            total_steps=total_steps,
            warmup_steps=config.warmup_steps,
            schedule=config.schedule,
        )
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = lr
        step_tokens, micro_batches = plan.items(step) * length, plan.micro_batches(step)
        step += 1
        for micro_batch in range(1, micro_batches + 1):
            inputs, targets = corpus.train.batch(next(batches), length)  # [B, L], [B, L]
            if runtime.device.type == "cuda":
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            inputs = inputs.to(runtime.device, non_blocking=True)
            targets = targets.to(runtime.device, non_blocking=True)
            with exchange_gradients(learner, now=micro_batch == micro_batches):
                with runtime.autocast():
                    out = learner(input_ids=inputs, shift_labels=targets, num_items_in_batch=1)  # sums
                scaler.scale(share_of_mean(out.loss, step_tokens, runtime)).backward()
            tally.add(step, out.loss, out.group_loss, out.member_loss)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        window_tokens += step_tokens

        if runtime.any(stop.reason is not None):  # all ranks stop at the same step
            reason = stop.reason or "another rank was told to stop"
        ending = step == total_steps or reason is not None
        evaluating = ending or step % config.eval_every == 0
        sampling = config.sample_every > 0 and (ending or step % config.sample_every == 0)
        if not (evaluating or sampling) and step % log_every:
            continue

        # ----------------------------------------------------------------------------------------------------
        # Report

        sums = tally.fetch()  # waits for the GPU; raises if the loss was not finite
        seconds = time.perf_counter() - window_began
        minutes += seconds / 60
        axes = {"tokens": plan.items_before(step) * length, "minutes": minutes}
        losses = {key: value / window_tokens for key, value in sums.items()}
        speed = window_tokens / seconds
        memory = float(runtime.max(torch.tensor(runtime.peak_memory() / 2**30)))  # GiB, of the fullest rank
        book.scalars(
            step,
            {
                "loss/train": losses["loss"],
                "loss/group": losses["group_loss"],
                "loss/member": losses["member_loss"],
                "perplexity/train": math.exp(min(losses["loss"], 700.0)),
                "learning_rate": lr,
                "speed/tokens_per_s": speed,
                "memory/peak": memory,
            },
            **axes,
        )
        scored = f"{metrics['loss/validation']:.3f}" if metrics else "-"
        left = (total_steps - step) * (time.monotonic() - began) / (step - first_step)
        eta = timedelta(seconds=round(min(left, stop.seconds_left)))
        book.progress(
            f"step {step:,}/{total_steps:,}  loss {losses['loss']:.3f} (group {losses['group_loss']:.3f} + "
            f"member {losses['member_loss']:.3f})  validation {scored}  {speed:,.0f} tokens/s  ETA {eta}  "
            f"peak {memory:.1f} GiB"
        )

        # ----------------------------------------------------------------------------------------------------
        # Evaluate, save, tell stories

        if reason is not None and step < total_steps and runtime.is_main:
            save_last()  # at once, for who sends a signal may not wait for the evaluation
        if evaluating:
            result = evaluate(
                model, corpus.validation, validation, length, partition, runtime, config.batch_size
            )
            if not math.isfinite(result.loss):
                raise not_finite("validation loss", step)
            metrics = {**result.scalars(), "bits_per_byte": result.bits_per_byte(corpus.validation)}
            book.scalars(step, metrics, **axes)
            if runtime.is_main:
                is_best, best = result.loss < best, min(result.loss, best)
                if is_best:
                    save_model(run, "best", model, state())
                save_last()
            book.say(
                f"step {step:,}: validation loss {result.loss:.3f}, perplexity {result.perplexity:.1f}, "
                f"{metrics['bits_per_byte']:.3f} bits per byte, accuracy {result.token_accuracy:.1%} "
                f"(group {result.group_accuracy:.1%})"
            )
        if sampling and runtime.is_main:
            book.text("samples", _samples(model, tokenizer, SAMPLE_PROMPTS), step)
        window_tokens, window_began = 0, time.perf_counter()

    book.hparams(settings, metrics)
    if reason is not None:
        again = "train_lm" if runtime.world_size == 1 else "torchrun ... -m lm.train"
        book.say(
            f"stopped after step {step:,}: {reason}; go on with: {again} --resume {shlex.quote(str(run))}"
        )
    book.say(f"saved in {run}; listen to it with: sample_lm {run}; score it with: eval_lm {run}")
    book.close()


def data_of(config: TrainConfig, saved: dict[str, Any]) -> str:
    """The text to train on: on resuming, what the run has used so far.

    Args:
        saved: the settings of the run to go on with; empty for a new one.
    """
    # `auto` might find something else today, and a relative path means nothing in another folder.
    moved = config.data == saved.get("data") and not Path(config.data).exists()
    return str(saved.get("data_used", config.data)) if config.data == "auto" or moved else config.data


def has_own_tokenizer(config: TrainConfig, saved: dict[str, Any], run: Path) -> bool:
    """Whether to go on with the run's copy of its tokenizer: the file that it came from may be gone.

    One learnt from the data is looked up instead: it tells whether these have changed.
    """
    same = config.tokenizer == saved.get("tokenizer") and not config.tokenizer.startswith("train:")
    return same and (run / "tokenizer.json").is_file()


def _describe_head(config: TrainConfig, head: Head, partition: Partition) -> str:
    parts = [
        config.head,
        head.describe(),
        f"by {config.grouping}" if head.partition is not None or head.frequent_first else None,
        "prior" if config.prior else None,
        "through an adapter" if config.adapter else None,
    ]
    groups = f"{partition.num_groups:,} groups of at most {partition.group_size:,} classes"
    known = "" if head.partition is not None else f"; group accuracy by {groups}, by {config.grouping}"
    return ", ".join(filter(None, parts)) + known


def parameter_groups(model: CompressedLM, weight_decay: float) -> list[dict[str, object]]:
    """Decay the backbone's matrices only: not its embeddings, not the head, whose shift holds the prior, not
    the adapter, which begins as the identity."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.backbone.parameters():
        is_matrix = parameter.dim() >= 2 and id(parameter) not in embeddings
        (decayed if is_matrix else kept).append(parameter)
    ours = {id(parameter) for parameter in (*decayed, *kept)}
    top = [*model.head.parameters(), *(model.adapter.parameters() if model.adapter else ())]
    kept += [parameter for parameter in top if id(parameter) not in ours]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def _samples(model: CompressedLM, tokenizer: TextTokenizer, prompts: Sequence[str]) -> str:
    """Stories from fixed prompts, as Markdown."""
    prompts = fitting(prompts, tokenizer, model)
    texts = continue_stories(model, tokenizer, prompts, max_tokens=SAMPLE_TOKENS)
    stories = (f"**{prompt}**{text}" for prompt, text in zip(prompts, texts, strict=True))
    return "\n\n---\n\n".join(story.replace("\n", "\n\n") for story in stories)
