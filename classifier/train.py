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

import math
import os
from typing import Any

import torch

from classifier.augment import Augmentation
from classifier.backbones import make_encoder
from classifier.config import TrainConfig
from classifier.data import (
    class_counts,
    image_batches,
    image_errors,
    in_batches,
    open_images,
    sample_of,
    training_batches,
)
from classifier.evaluate import CLASSES, evaluate
from classifier.figures import confusion_figures, example_grid
from classifier.model import make_classifier, make_partition, parameter_table, require_room
from sqrtvocab.errors import UserError
from sqrtvocab.training.accumulate import exchange_gradients, share_of_mean
from sqrtvocab.training.batch_plan import BatchPlan
from sqrtvocab.training.logbook import Logbook, markdown_table
from sqrtvocab.training.run import open_run
from sqrtvocab.training.run_folder import look_into_folder
from sqrtvocab.training.runtime import Runtime, open_runtime
from sqrtvocab.training.schedule import set_learning_rate
from sqrtvocab.training.stop import StopRequests
from sqrtvocab.training.tally import Tally, not_finite
from sqrtvocab.training.window import Window

# What a resumed run must share with its beginning. The number of ranks may change if a step keeps its images.
SAME_RUN = (
    "head", "modulation", "rank", "num_classes", "grouping", "groups", "prior", "backbone",
    "drawn_on_the_fly", "image_size", "grey", "augment", "flip", "training_images", "images_per_step",
    "eval_images", "seed",
)  # fmt: skip
HPARAMS = ("head", "grouping", "groups", "num_classes", "prior", "backbone", "images_per_step", "lr", "seed")
EXAMPLES = 12  # validation images shown with captions


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
    num_classes, space = len(train_images.classes), train_images.space
    radices = None if space is None else space.radices
    if len(train_images) < runtime.world_size or not len(validation_images):
        raise UserError(
            f"{len(train_images)} training and {len(validation_images)} validation images are too few "
            f"for {runtime.world_size} ranks"
        )
    plan = BatchPlan(
        len(train_images), config.batch_size, config.accumulate, config.seed, runtime.rank, runtime.world_size
    )
    total_steps = config.total_steps(plan.steps_per_epoch)
    workers = config.num_workers(runtime.device.type, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    validation = sample_of(validation_images, config.eval_images, config.seed)
    my_validation = validation[runtime.rank :: runtime.world_size]

    # --------------------------------------------------------------------------------------------------------
    # Model and optimiser

    partition = make_partition(num_classes, config.grouping, config.num_groups, config.seed, radices)
    size, _, channels = train_images.shape
    weights = config.weights if folder.checkpoint is None else "none"  # else they are in the checkpoint
    encoder = make_encoder(config.backbone, size, channels, weights)
    model = make_classifier(config.head, partition, encoder, radices, **config.given_head_options())
    if config.prior:
        model.head.init_prior(class_counts(train_images))
    model.to(runtime.device)
    partition.to(runtime.device)
    require_room(model, train_images.shape, config.batch_size, plan, runtime)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    scaler = runtime.scaler()

    # --------------------------------------------------------------------------------------------------------
    # Run folder: a new one, or one to continue

    images_settings = {f"data_{name}": value for name, value in train_images.identity().items()}
    resolved: dict[str, Any] = {
        "num_classes": num_classes,
        "groups": partition.num_groups,
        "drawn_on_the_fly": config.data is None,
        "image_size": size,
        **images_settings,
        "training_images": len(train_images),
        "images_per_step": plan.effective_batch,
        "total_steps": total_steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "head_parameters": sum(parameter.numel() for parameter in model.head.parameters()),
    }
    same = (*SAME_RUN, *images_settings)
    documents = {CLASSES: list(train_images.classes)} if space is None else {}
    run = open_run(folder, config, resolved, same, model, optimizer, scaler, runtime, documents)
    book = Logbook(run.folder, start_step=run.step, recorded=run.recorded, enabled=runtime.is_main)
    book.text("config", markdown_table(run.settings))
    ceiling = train_images.ceiling() if runtime.is_main else None
    facts = {"data": f"{num_classes:,} classes, {len(train_images):,} training images {source.where}"}
    if source.notes:
        facts["note"] = "; ".join(source.notes)
    if config.backbone != "cnn":
        facts["backbone"] = f"{config.backbone} on {size} x {size} pixels, weights {config.weights}"
    facts["head"] = f"{config.head}, {model.head.describe()}"
    facts["groups"] = f"{partition.num_groups} of at most {partition.group_size} classes ({config.grouping})"
    if not model.head.has_groups:
        facts["groups"] += "; used only to report accuracy/group"
    facts["parameters"] = "; ".join(f"{part} {count:,}" for part, count in parameter_table(model).items())
    facts["steps"] = f"{total_steps:,} of {plan.effective_batch:,} images; {plan.steps_per_epoch:,} an epoch"
    if ceiling is not None:
        facts["ceiling"] = f"{ceiling.overall:.1%}, the most that any classifier can reach on these images"
    run.introduce(book, facts)
    if run.has_nothing_to_do(book):
        return

    # --------------------------------------------------------------------------------------------------------
    # The loop

    stop.catch_signals()  # from here on Ctrl-C finishes the step; before, it just ends the command
    model.train()
    if config.compile:
        model.compile()
    learner = runtime.replicate(model)
    augmentation = Augmentation(config.augment, config.flip, size, config.seed)
    steps = range(run.step, total_steps)
    batches = iter(training_batches(train_images, plan, steps, workers, runtime, augmentation))
    tally = Tally(("loss", "group_loss", "member_loss"), runtime)
    window = Window("images", run.step, total_steps, stop, runtime)
    reason = None  # to stop early

    while run.step < total_steps and reason is None:
        runtime.seed_step(run.step)
        lr = set_learning_rate(optimizer, config, run.step, total_steps)
        step_images, micro_batches = plan.items(run.step), plan.micro_batches(run.step)
        run.step += 1
        for micro_batch in range(1, micro_batches + 1):
            images, target = window.next(batches)
            images = images.to(runtime.device, non_blocking=True)
            target = target.to(runtime.device, non_blocking=True)
            with exchange_gradients(learner, now=micro_batch == micro_batches):
                with runtime.autocast():
                    out = learner(images, target, reduction="sum")
                scaler.scale(share_of_mean(out.loss, step_images, runtime)).backward()
            tally.add(run.step, out.loss, out.group_loss, out.member_loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        window.add(step_images)

        reason = stop.agreed_reason(runtime)
        evaluating = run.step % config.eval_every == 0 or run.step == total_steps or reason is not None
        if not (evaluating or window.is_due(run.step)):
            continue

        # ----------------------------------------------------------------------------------------------------
        # Report

        report = window.report(run.step, tally.fetch())  # waits for the GPU; raises if a loss was not finite
        run.minutes += report.seconds / 60
        axes = {"images": plan.items_before(run.step), "minutes": run.minutes}
        waiting = {"speed/data_wait_fraction": report.wait_fraction}
        book.scalars(run.step, {**report.scalars(lr), **waiting}, **axes)
        scored = f"{run.metrics['accuracy/overall']:.1%}" if run.metrics else "-"
        book.progress(report.phrases(f"accuracy {scored}"))

        # ----------------------------------------------------------------------------------------------------
        # Evaluate and save

        if reason is not None and run.step < total_steps:
            run.save_last()  # at once: whoever sent the signal may not wait for the evaluation
        if evaluating:
            my_batches = in_batches(my_validation, config.batch_size)
            loader = image_batches(validation_images, my_batches, workers, runtime)
            runtime.share(model.buffers())  # of batch norms, which every rank has seen other images with
            result = evaluate(model, loader, partition, runtime)
            if not math.isfinite(result.loss):
                raise not_finite("validation loss", run.step)
            run.metrics = {
                "loss/validation": result.loss,
                **result.accuracies(),
                **({"accuracy/ceiling": ceiling.overall} if ceiling else {}),
                **{f"attribute/{name}": share for name, share in result.attributes(space).items()},
            }
            accuracy = run.metrics["accuracy/overall"]
            book.scalars(run.step, run.metrics, **axes)
            if runtime.is_main:
                pictures, true = validation_images.batch(my_validation[:EXAMPLES])
                guessed = result.predicted[: len(true)]  # in the result, rank 0's images come first
                grid = example_grid(pictures, true, guessed, train_images.classes if space is None else space)
                book.figure("examples", grid, run.step)
                for name, matrix in confusion_figures(result.target, result.predicted, space).items():
                    book.figure(f"confusion/{name}", matrix, run.step)
            score = [accuracy, -result.loss]  # the loss chooses among equals
            if run.best is None or score > run.best:
                run.best = score
                run.save_best()
            run.save_last()
            book.say(
                f"step {run.step:,}: validation loss {result.loss:.3f}, group "
                f"{run.metrics['accuracy/group']:.1%}, accuracy {accuracy:.1%}"
                + (f" of {ceiling.overall:.1%}" if ceiling else "")
            )
            reason = reason or stop.agreed_reason(runtime)  # this step need not be evaluated twice
        window.restart()

    book.hparams({name: run.settings[name] for name in HPARAMS}, run.metrics)
    run.close(book, reason, f"score it on the test images with: eval_classifier {run.folder}")
