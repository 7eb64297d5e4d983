"""Train a GPT-2, GPT-Neo or Llama on short stories, with any head.

    train_lm --preset quickstart                  # about a minute on two CPU cores
    train_lm --preset quickstart --head flat      # the same, with the ordinary head
    train_lm --preset paper-128                   # the paper's smallest model
    torchrun --nproc-per-node 2 -m lm.train       # on two GPUs
    tensorboard --logdir runs                     # watch
    sample_lm runs/lm-gpt2-64-grouped-linear-lr0.008      # listen

Everything random is a function of the seed and the step, and everything learnt is in the checkpoint, so a run
that was killed continues with --resume auto as if nothing had happened.
"""

from __future__ import annotations

if __name__ == "__main__":  # first of all, so that `python -m lm.train --help` need not import torch
    from lm.cli import train_main

    raise SystemExit(train_main())

import math
from dataclasses import replace
from typing import Any, cast

import torch
import transformers
from torch import nn

from lm.build import (
    build_model,
    make_optimizer,
    open_text,
    parameter_table,
    require_room,
)
from lm.config import TrainConfig
from lm.generate import stories_in_markdown
from lm.report import BOARD, Validation, opening_facts
from lm.runs import embedding_of, model_documents, read_partition, write_partition
from lm.stories.openings import SAMPLE_PROMPTS
from lm.text.sources import lasting_name
from sqrtvocab.errors import UserError
from sqrtvocab.training.accumulate import exchange_gradients, share_of_mean
from sqrtvocab.training.batch_plan import BatchPlan
from sqrtvocab.training.gradients import GradientNorms
from sqrtvocab.training.logbook import Logbook, markdown_table
from sqrtvocab.training.run import open_run
from sqrtvocab.training.run_folder import look_into_folder
from sqrtvocab.training.runtime import Runtime, open_runtime
from sqrtvocab.training.schedule import set_learning_rate
from sqrtvocab.training.stop import StopRequests
from sqrtvocab.training.tally import Tally
from sqrtvocab.training.vocab_parallel import own_tensors, split_over_ranks, split_parameters
from sqrtvocab.training.window import Window

# What a resumed run must share with its beginning. The number of ranks may change if a step keeps its text.
SAME_RUN = (
    "head", "modulation", "rank", "samples", "hashes", "buckets", "grouping", "groups", "prior",
    "tie_embeddings", "adapter", "backbone", "hidden_size", "num_layers", "num_attention_heads", "seq_len",
    "dropout", "data_used", "tokenizer", "vocab", "tokenizer_digest", "training_tokens", "sequences_per_step",
    "optimizer", "weight_decay", "seed",
)  # fmt: skip
CLIP = 1.0  # the gradient's largest norm
SAMPLE_TOKENS = 120


def train(config: TrainConfig) -> None:
    """Run `train_lm`.

    Raises:
        UserError: for input that cannot be used.
        RunError: if the loss is not finite, or a checkpoint cannot be written.
    """
    with (
        open_runtime(config.device, config.precision, config.seed) as runtime,
        StopRequests(config.max_minutes) as stop,
    ):
        _train(config, runtime, stop)


def _train(config: TrainConfig, runtime: Runtime, stop: StopRequests) -> None:
    folder = look_into_folder(config, runtime)  # first: nobody likes to hear "no" after tokenising

    # --------------------------------------------------------------------------------------------------------
    # Data: the text in tokens, and which of them each step sees

    source, tokenizer, corpus = open_text(config, folder, runtime.say)
    length = config.seq_len
    windows = corpus.train.windows(length)
    if windows < runtime.world_size:
        raise UserError(
            f"--seq-len {length}: longer than the training text, which has {len(corpus.train.ids):,} tokens"
        )
    plan = BatchPlan(
        windows, config.batch_size, config.accumulate, config.seed, runtime.rank, runtime.world_size
    )
    total_steps = config.total_steps(plan.steps_per_epoch)

    # --------------------------------------------------------------------------------------------------------
    # Model and optimiser

    vectors = None
    if config.embeddings is not None and folder.checkpoint is None:  # a resumed run has its groups already
        vectors = embedding_of(config.embeddings, tokenizer, runtime)
        runtime.say(f"clustering the tokens by the embeddings of {config.embeddings}: takes a few seconds")
    model, partition = build_model(config, tokenizer, corpus.train.counts, vectors)
    parameters = parameter_table(model)
    if config.vocab_parallel:
        model.head = split_over_ranks(model.head, config.head, runtime)
    if config.checkpoint_activations:
        model.activation_checkpointing_enable({"use_reentrant": False})
    cast(nn.Module, model).to(runtime.device)
    require_room(model, config, plan, runtime)
    optimizer = make_optimizer(model, config, corpus.train.counts)
    scaler = runtime.scaler(model.head.is_split)

    # --------------------------------------------------------------------------------------------------------
    # Run folder: a new one, or one to continue

    resolved: dict[str, Any] = {
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
        "transformers": transformers.__version__,
    }
    used = lasting_name(str(folder.saved.get("data_used")))  # older runs have it as it was typed
    folder = replace(folder, saved={**folder.saved, "data_used": used})
    documents = model_documents(model, tokenizer)
    run = open_run(folder, config, resolved, SAME_RUN, model, optimizer, scaler, runtime, documents)
    if folder.checkpoint is not None:
        partition = read_partition(run.folder, model.head, config.grouping, partition.num_groups)
    partition.to(runtime.device)
    validation = Validation(corpus, tokenizer, config, partition, runtime)
    if runtime.is_main:
        tokenizer.save(run.folder / "tokenizer.json")
        write_partition(run.folder, model.head, partition)
    book = Logbook(
        run.folder, start_step=run.step, recorded=run.recorded, enabled=runtime.is_main, board=BOARD
    )
    book.text("config", markdown_table(run.settings))
    book.text("parameters", markdown_table(parameters))
    facts = opening_facts(config, source, tokenizer, corpus, model, partition, plan, parameters)
    run.introduce(book, facts)
    if run.has_nothing_to_do(book):
        return

    # --------------------------------------------------------------------------------------------------------
    # The loop

    stop.catch_signals()  # from here on Ctrl-C finishes the step; before, it just ends the command
    model.train()
    # A compiled model is a wrapper: `model` itself stays as it is, for generate().
    compiled = cast(nn.Module, torch.compile(model)) if config.compile else model
    learner = runtime.replicate(compiled, own_tensors(model))
    batches = iter(plan.batches(run.step, total_steps))
    tally = Tally(("loss", "group_loss", "member_loss"), runtime)
    gradients = GradientNorms(runtime, CLIP, split_parameters(model))
    window = Window("tokens", run.step, total_steps, stop, runtime)
    reason = None  # to stop early

    while run.step < total_steps and reason is None:
        runtime.seed_step(run.step)
        lr = set_learning_rate(optimizer, config, run.step, total_steps)
        step_tokens, micro_batches = plan.items(run.step) * length, plan.micro_batches(run.step)
        run.step += 1
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
            tally.add(run.step, out.loss, out.group_loss, out.member_loss)
        scaler.unscale_(optimizer)
        gradients.measure(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        window.add(step_tokens)

        reason = stop.agreed_reason(runtime)
        ending = run.step == total_steps or reason is not None
        evaluating = ending or run.step % config.eval_every == 0
        sampling = config.sample_every > 0 and (ending or run.step % config.sample_every == 0)
        if not (evaluating or sampling or window.is_due(run.step)):
            continue

        # ----------------------------------------------------------------------------------------------------
        # Report

        report = window.report(run.step, tally.fetch())  # waits for the GPU; raises if a loss was not finite
        run.minutes += report.seconds / 60
        axes = {"tokens": plan.items_before(run.step) * length, "minutes": run.minutes}
        perplexity = {"perplexity/train": math.exp(min(report.loss, 700.0))}
        book.scalars(run.step, {**report.scalars(lr), **gradients.fetch(), **perplexity}, **axes)
        scored = f"{run.metrics['loss/validation']:.3f}" if run.metrics else "-"
        book.progress(report.phrases(f"validation {scored}"))
        if report.notice:
            book.say(report.notice)

        # ----------------------------------------------------------------------------------------------------
        # Evaluate, save, tell stories

        if reason is not None and run.step < total_steps:
            run.save_last()  # at once: whoever sent the signal may not wait for the evaluation
        if evaluating:
            result = validation.score(model, run.step)
            run.metrics = validation.metrics(result)
            book.scalars(run.step, run.metrics, **axes)
            validation.show(book, result, run.step)
            if ending:
                validation.show_tokens(run.folder, model)
            if run.best is None or result.loss < run.best:
                run.best = result.loss
                run.save_best()
            run.save_last()
            book.say(f"step {run.step:,}: {validation.summary(run.metrics)}")
            reason = reason or stop.agreed_reason(runtime)  # this step need not be evaluated twice
        if sampling and (runtime.is_main or model.head.is_split):
            with model.head.common_rows():  # where it takes all ranks to tell a story, all tell the same
                stories = stories_in_markdown(model, tokenizer, SAMPLE_PROMPTS, SAMPLE_TOKENS)
            book.text("samples", stories, run.step)
        window.restart()

    book.hparams(run.settings, run.metrics)
    run.close(book, reason, f"listen to it with: sample_lm {run.folder}; score it with: eval_lm {run.folder}")
