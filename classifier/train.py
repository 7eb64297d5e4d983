"""Train a classifier on your own pictures, or the paper's on 184,320 classes of drawn shapes, with any head.

    train_classifier --preset quickstart                  # about a minute on two CPU cores
    train_classifier --preset quickstart --head flat      # the same, with the ordinary head
    train_classifier --data photos                        # your own pictures, a folder for each class
    train_classifier                                      # the paper's run
    torchrun --nproc-per-node 2 -m classifier.train       # the same on two GPUs
    tensorboard --logdir runs                             # watch

Everything random is a function of the seed and the step, and everything learnt is in the checkpoint, so a run
that was killed continues with --resume auto as if nothing had happened.
"""

from __future__ import annotations

if __name__ == "__main__":  # first of all, so that `python -m classifier.train --help` need not import torch
    from classifier.cli import train_main

    raise SystemExit(train_main())

import os
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from classifier.augment import Augmentation
from classifier.backbones import make_encoder
from classifier.config import TrainConfig
from classifier.data import image_errors, open_images, training_batches
from classifier.discovered import groups_of_run
from classifier.examples import Examples, make_plan
from classifier.labels import read_labels
from classifier.mixing import Mixing
from classifier.model import make_classifier, make_optimizer, parameter_table, require_room
from classifier.report import Validation, make_board, opening_facts
from classifier.trained import documents_beside_weights
from sqrtvocab.errors import UserError
from sqrtvocab.training.accumulate import exchange_gradients, share_of_mean
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

# What a resumed run must share with its beginning. The number of ranks may change if a step keeps its images.
SAME_RUN = (
    "head", "modulation", "rank", "samples", "hashes", "buckets", "storage", "num_classes", "grouping",
    "groups", "radices", "super_classes", "prior", "optimizer", "backbone", "drawn_on_the_fly", "image_size",
    "grey", "augment", "flip", "mixup", "cutmix", "training_images", "images_per_step", "eval_images", "seed",
    "shuffle_labels", "images_of_a_class", "class_balance", "mine_at", "mine_classes", "refresh_images",
    "hold_out_classes",
)  # fmt: skip
HPARAMS = ("head", "grouping", "groups", "num_classes", "prior", "backbone", "images_per_step", "lr", "seed")


def train(config: TrainConfig) -> None:
    """Run `train_classifier`.

    Raises:
        UserError: for input that cannot be used.
        RunError: if the loss is not finite, a checkpoint cannot be written, a file of images turns out to be
            damaged or a worker ends.
    """
    with (
        image_errors(config.data),
        open_runtime(config.device, config.precision, config.seed) as runtime,
        StopRequests(config.max_minutes) as stop,
    ):
        _train(config, runtime, stop)


def _train(config: TrainConfig, runtime: Runtime, stop: StopRequests) -> None:
    folder = look_into_folder(config, runtime)

    # --------------------------------------------------------------------------------------------------------
    # Data: which images there are, and which of them each step sees

    source = open_images(config, runtime.say)
    train_images, validation_images = source["train"], source["validation"]
    labels = read_labels(config, train_images)
    config = labels.settle(config)
    if len(train_images) < runtime.world_size or not len(validation_images):
        raise UserError(
            f"{len(train_images)} training and {len(validation_images)} validation images are too few "
            f"for {runtime.world_size} ranks"
        )
    plan = make_plan(config, train_images, runtime)
    total_steps = config.total_steps(plan.steps_per_epoch)
    workers = config.num_workers(runtime.device.type, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))

    # --------------------------------------------------------------------------------------------------------
    # Model and optimiser

    partition = groups_of_run(config, labels, train_images, folder.checkpoint, runtime)
    size, _, channels = train_images.shape
    weights = config.weights if folder.checkpoint is None else "none"  # else they are in the checkpoint
    encoder = make_encoder(config.backbone, size, channels, weights)
    frequent_first, options = labels.frequent_first(), config.given_head_options()
    model = make_classifier(config.head, partition, encoder, labels.radices, frequent_first, **options)
    if config.prior:
        model.head.init_prior(labels.counts)
    parameters = parameter_table(model)
    if config.vocab_parallel:
        model.head = split_over_ranks(model.head, config.head, runtime)
    model.to(runtime.device)
    partition.to(runtime.device)
    require_room(model, train_images.shape, config, plan, runtime)
    validation = Validation(source, config, labels, partition, workers, runtime)
    optimizer = make_optimizer(model, config, labels.counts, runtime)
    scaler = runtime.scaler(model.head.is_split)

    # --------------------------------------------------------------------------------------------------------
    # Run folder: a new one, or one to continue

    images_settings = {f"data_{name}": value for name, value in train_images.identity().items()}
    resolved: dict[str, Any] = {
        "num_classes": len(train_images.classes),
        "super_classes": None if labels.taxonomy is None else labels.taxonomy.digest,
        "groups": partition.num_groups,
        "drawn_on_the_fly": config.data is None,
        "image_size": size,
        **images_settings,
        "training_images": len(train_images),
        "images_per_step": plan.effective_batch,
        "total_steps": total_steps,
        "parameters": parameters["encoder"] + parameters["head"],
        "head_parameters": parameters["head"],
    }
    same = (*SAME_RUN, *images_settings)
    documents = documents_beside_weights(config, train_images, labels, partition)
    run = open_run(folder, config, resolved, same, model, optimizer, scaler, runtime, documents)
    book = Logbook(
        run.folder,
        start_step=run.step,
        recorded=run.recorded,
        enabled=runtime.is_main,
        board=make_board(labels),
    )
    book.text("config", markdown_table(run.settings))
    facts = opening_facts(config, source, labels, model, partition, plan, validation, parameters)
    run.introduce(book, facts)
    if run.has_nothing_to_do(book):
        return

    # --------------------------------------------------------------------------------------------------------
    # The loop

    stop.catch_signals()  # from here on Ctrl-C finishes the step; before, it just ends the command
    model.train()
    if config.compile:
        model.compile()
    learner = runtime.replicate(model, own_tensors(model))
    augmentation = Augmentation(config.augment, config.flip, size, config.seed)
    mixing = Mixing(config.mixup, config.cutmix)
    examples = Examples(train_images, plan, config, workers, runtime)
    planned = range(0)  # the steps that `batches` holds
    batches: Iterator[tuple[Tensor, ...]] = iter(())
    tally = Tally(("loss", "group_loss", "member_loss"), runtime)
    gradients = GradientNorms(runtime, split=split_parameters(model))
    window = Window("images", run.step, total_steps, stop, runtime)
    reason = None  # to stop early

    while run.step < total_steps and reason is None:
        runtime.seed_step(run.step)
        lr = set_learning_rate(optimizer, config, run.step, total_steps)
        if run.step not in planned:
            if run.step in config.mine_at:
                run.save_last()  # evaluations, which save too, are rare where they embed every class
            planned = examples.steps_from(run.step, total_steps, model)
            batches = iter(training_batches(train_images, plan, planned, workers, runtime, augmentation))
        step_images, micro_batches = plan.items(run.step), plan.micro_batches(run.step)
        run.step += 1
        for micro_batch in range(1, micro_batches + 1):
            batch = window.next(batches)
            images, target, drawn = (part.to(runtime.device, non_blocking=True) for part in batch)
            if drawn.shape[1]:  # else the workers have done it, or there is nothing to do
                images = augmentation.apply(images, drawn)
            images, target, shares = mixing(images, target)
            with exchange_gradients(learner, now=micro_batch == micro_batches):
                with runtime.autocast():
                    out = learner(images, target, shares, reduction="sum")
                scaler.scale(share_of_mean(out.loss, step_images, runtime)).backward()
            tally.add(run.step, out.loss, out.group_loss, out.member_loss)
        scaler.unscale_(optimizer)
        gradients.measure(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        window.add(step_images)

        reason = stop.agreed_reason(runtime)
        is_planned = run.step % config.eval_every == 0 or run.step == total_steps
        evaluating = is_planned or reason is not None
        ending = run.step == total_steps or reason is not None
        if not (evaluating or window.is_due(run.step)):
            continue

        # ----------------------------------------------------------------------------------------------------
        # Report

        report = window.report(run.step, tally.fetch())  # waits for the GPU; raises if a loss was not finite
        run.minutes += report.seconds / 60
        axes = {"images": plan.items_before(run.step), "minutes": run.minutes}
        waiting = {"speed/data_wait_fraction": report.wait_fraction}
        book.scalars(run.step, {**report.scalars(lr), **gradients.fetch(), **waiting}, **axes)
        scored = f"{run.metrics['accuracy/overall']:.1%}" if run.metrics else "-"
        book.progress(report.phrases(f"accuracy {scored}"))
        if report.notice:
            book.say(report.notice)

        # ----------------------------------------------------------------------------------------------------
        # Evaluate and save

        if reason is not None and run.step < total_steps:
            run.save_last()  # at once: whoever sent the signal may not wait for the evaluation
        if evaluating:
            run.minutes += examples.refresh(model) / 60  # what the classes are is part of what was learnt
            result = validation.score(model, run.step, ending)
            run.metrics = validation.metrics(result)
            book.scalars(run.step, run.metrics, **axes)
            validation.show(book, run.folder, result, run.step)
            score = [run.metrics["accuracy/overall"], -result.loss]  # the loss chooses among equals
            if run.best is None or score > run.best:
                run.best = score
                run.save_best()
            if is_planned or not model.head.from_examples:  # else it was saved before the classes changed
                run.save_last()
            book.say(f"step {run.step:,}: {validation.summary(run.metrics)}")
            reason = reason or stop.agreed_reason(runtime)  # this step need not be evaluated twice
        window.restart()

    book.hparams({name: run.settings[name] for name in HPARAMS}, run.metrics)
    run.close(book, reason, f"score it on the test images with: eval_classifier {run.folder}")
