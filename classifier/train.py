"""Train the paper's CNN on 184,320 classes of drawn shapes, with any head.

    train_classifier --preset quickstart                  # about a minute on two CPU cores
    train_classifier --preset quickstart --head flat      # the same, with the ordinary head
    train_classifier                                      # the paper's run
    torchrun --nproc-per-node 2 -m classifier.train       # the same on two GPUs
    tensorboard --logdir runs                             # watch

Everything random is a function of the seed and the step, and everything learnt is in the checkpoint, so a run
that was killed goes on with --resume auto as if nothing had happened.
"""

from __future__ import annotations

if __name__ == "__main__":  # first of all, so that `python -m classifier.train --help` need not import torch
    from classifier.cli import train_main

    raise SystemExit(train_main())

import math
import os
import shlex
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from classifier.cnn import make_classifier, make_partition, parameter_table
from classifier.config import TrainConfig
from classifier.data import (
    ceiling_of,
    class_counts,
    identity_of,
    image_batches,
    image_errors,
    in_batches,
    open_images,
    sample_of,
)
from classifier.evaluate import evaluate
from classifier.figures import CONFUSED, confusion_figure, example_grid
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
    save_checkpoint,
    share_of_mean,
    write_json,
)

# What a resumed run must share with its beginning. The number of ranks may change if a step keeps its images.
SAME_RUN = (
    "head", "modulation", "rank", "num_classes", "grouping", "groups", "prior", "drawn_on_the_fly",
    "training_images", "images_per_step", "eval_images", "seed",
)  # fmt: skip
MAY_CHANGE = ("lr", "schedule", "warmup_steps")  # such as a lower --lr after a loss that was not finite
HPARAMS = ("head", "grouping", "groups", "num_classes", "prior", "images_per_step", "lr", "seed")
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
        StopWatch(config.max_minutes) as stop,
    ):
        _train(config, runtime, stop)


def _train(config: TrainConfig, runtime: Runtime, stop: StopWatch) -> None:
    # --------------------------------------------------------------------------------------------------------
    # Data: which images there are, and which of them each step sees

    space = config.space()
    train_images, validation_images = open_images(config, "train"), open_images(config, "validation")
    if len(train_images) < runtime.world_size or not len(validation_images):
        raise UserError(
            f"{len(train_images)} training and {len(validation_images)} validation images are too few "
            f"for {runtime.world_size} ranks"
        )
    plan = BatchPlan(
        len(train_images), config.batch_size, config.accumulate, config.seed, runtime.rank, runtime.world_size
    )
    total_steps = min(config.epochs * plan.steps_per_epoch, config.max_steps or sys.maxsize)
    workers = config.num_workers(runtime.device.type, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    validation = sample_of(validation_images, config.eval_images, config.seed)
    my_validation = validation[runtime.rank :: runtime.world_size]

    # --------------------------------------------------------------------------------------------------------
    # Model and optimiser

    partition = make_partition(space, config.grouping, config.num_groups, config.seed)
    model = make_classifier(config.head, partition, **config.head_options())
    if config.prior:
        model.head.init_prior(class_counts(train_images))
    model.to(runtime.device)
    partition.to(runtime.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    scaler = runtime.scaler()

    # --------------------------------------------------------------------------------------------------------
    # Run folder: a new one, or one to go on with

    run = config.run_folder
    images_settings = identity_of(train_images)
    settings = {
        **config.to_json(),
        "num_classes": space.num_classes,
        "groups": partition.num_groups,
        "drawn_on_the_fly": config.data is None,
        **images_settings,
        "training_images": len(train_images),
        "images_per_step": plan.effective_batch,
        "total_steps": total_steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "head_parameters": sum(parameter.numel() for parameter in model.head.parameters()),
        "computed_on": runtime.describe(),
        "torch": torch.__version__,
    }
    checkpoint = find_checkpoint(run, config.resume)
    require_same_checkpoint(checkpoint, run, runtime)
    changes: list[str] = []
    step, minutes = 0, 0.0
    best = (-1.0, 0.0)  # accuracy, and minus the loss to choose among equals
    if checkpoint is not None:
        saved = read_config(run)
        keys = [*SAME_RUN, *images_settings]
        if saved.get("schedule") == config.schedule == "cosine":
            keys.append("total_steps")  # on which its learning rates depend
        require_same(saved, settings, keys, run)
        changes = [
            f"{key} from {saved.get(key)} to {settings[key]}"
            for key in MAY_CHANGE
            if saved.get(key) != settings[key]
        ]
        step, minutes = checkpoint.state["step"], checkpoint.state["minutes"]
        if math.isfinite(sum(checkpoint.state["best"])):  # else any score is better
            best = (checkpoint.state["best"][0], checkpoint.state["best"][1])
        checkpoint.load_weights(model)
        training = checkpoint.load_training()
        optimizer.load_state_dict(training["optimizer"])
        if training["scaler"]:  # empty if the run has not been in float16 so far
            scaler.load_state_dict(training["scaler"])
    # At most there are `last`, the one before it and a draft, each with Adam's two moments, and `best` twice.
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    require_space(run, 11 * weights + (64 << 20))
    runtime.barrier()  # all ranks have looked before the first one writes
    if runtime.is_main:
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / "config.json", settings)
    book = Logbook(run, start_step=step, enabled=runtime.is_main)
    book.text("config", markdown_table(settings))

    ceiling = ceiling_of(config).overall if runtime.is_main else 0.0
    for name, value in {
        "run": f"{run}, from step {step:,}",
        "device": runtime.describe(),
        "data": f"{space.num_classes:,} classes, {len(train_images):,} training images "
        + (f"in {config.data}" if config.data else "drawn on the fly"),
        "head": f"{config.head}, {model.head.describe()}",
        "groups": f"{partition.num_groups} of at most {partition.group_size} classes ({config.grouping})"
        + ("" if config.has_groups else "; used only to report accuracy/group"),
        "parameters": "; ".join(f"{part} {count:,}" for part, count in parameter_table(model).items()),
        "steps": f"{total_steps:,} of {plan.effective_batch:,} images; {plan.steps_per_epoch:,} an epoch",
        "ceiling": f"{ceiling:.1%}, the most that any classifier can reach on these images",
        "watch": f"tensorboard --logdir {run.parent}",
    }.items():
        book.say(f"{name:<11}{value}")
    if changes:
        book.say(f"{'changed':<11}{', '.join(changes)}")
    if step >= total_steps:
        book.say(
            f"nothing to do: the run has its {total_steps:,} steps; --epochs or --max-steps can add more"
            + (" (with --schedule constant)" if config.schedule == "cosine" else "")
        )
        book.close()
        return

    # --------------------------------------------------------------------------------------------------------
    # The loop

    model.train()
    if config.compile:
        model.compile()
    learner: nn.Module = model
    if runtime.world_size > 1:
        learner = DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)
    batches = iter(image_batches(train_images, plan.batches(step, total_steps), workers, runtime))
    tally = Tally(("loss", "group_loss", "member_loss"), runtime)
    log_every = 1 if runtime.device.type == "cpu" else 20  # reading numbers off a GPU makes it wait
    first_step, began = step, time.monotonic()
    waited, window_images, window_began = 0.0, 0, time.perf_counter()
    metrics: dict[str, float] = {}
    reason = None

    def save_last() -> None:
        training = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        save_checkpoint(run, "last", model, state(), training)

    def state() -> dict[str, Any]:
        return {"step": step, "minutes": minutes, "best": best, "metrics": metrics}

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
        step_images, micro_batches = plan.items(step), plan.micro_batches(step)
        step += 1
        for micro_batch in range(1, micro_batches + 1):
            asked = time.perf_counter()
            images, target = next(batches)
            waited += time.perf_counter() - asked
            images = images.to(runtime.device, non_blocking=True)
            target = target.to(runtime.device, non_blocking=True)
            with exchange_gradients(learner, now=micro_batch == micro_batches):
                with runtime.autocast():
                    out = learner(images, target, reduction="sum")
                scaler.scale(share_of_mean(out.loss, step_images, runtime)).backward()
            tally.add(step, out.loss, out.group_loss, out.member_loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        window_images += step_images

        reason = _stop_reason(stop, runtime)
        evaluating = step % config.eval_every == 0 or step == total_steps or reason is not None
        if not evaluating and step % log_every:
            continue

        # ----------------------------------------------------------------------------------------------------
        # Report

        sums = tally.fetch()  # waits for the GPU; raises if the loss was not finite
        seconds = time.perf_counter() - window_began
        minutes += seconds / 60
        axes = {"images": plan.items_before(step), "minutes": minutes}
        losses = {key: value / window_images for key, value in sums.items()}
        speed = window_images / seconds
        slowest = runtime.max(torch.tensor([waited / seconds, runtime.peak_memory() / 2**30]).double())
        wait_fraction, memory = (
            slowest.tolist()
        )  # of the rank that waits most, of the one that holds most GiB
        book.scalars(
            step,
            {
                "loss/train": losses["loss"],
                "loss/group": losses["group_loss"],
                "loss/member": losses["member_loss"],
                "learning_rate": lr,
                "speed/images_per_s": speed,
                "speed/data_wait_fraction": wait_fraction,
                "memory/peak": memory,
            },
            **axes,
        )
        accuracy = f"{metrics['accuracy/overall']:.1%}" if metrics else "-"
        left = (total_steps - step) * (time.monotonic() - began) / (step - first_step)
        eta = timedelta(seconds=round(min(left, stop.seconds_left)))
        book.progress(
            f"step {step:,}/{total_steps:,}  loss {losses['loss']:.3f} (group {losses['group_loss']:.3f} + "
            f"member {losses['member_loss']:.3f})  accuracy {accuracy}  {speed:,.0f} images/s  ETA {eta}  "
            f"peak {memory:.1f} GiB"
        )

        # ----------------------------------------------------------------------------------------------------
        # Evaluate and save

        if reason is not None and step < total_steps and runtime.is_main:
            save_last()  # at once, for who sends a signal may not wait for the evaluation
        if evaluating:
            my_batches = in_batches(my_validation, config.batch_size)
            result = evaluate(
                model, image_batches(validation_images, my_batches, workers, runtime), partition, runtime
            )
            if not math.isfinite(result.loss):
                raise not_finite("validation loss", step)
            metrics = {
                "loss/validation": result.loss,
                **result.accuracies(),
                "accuracy/ceiling": ceiling,
                **{f"attribute/{name}": share for name, share in result.attributes(space).items()},
            }
            book.scalars(step, metrics, **axes)
            if runtime.is_main:
                pictures, true = validation_images.batch(my_validation[:EXAMPLES])
                guessed = result.predicted[: len(true)]  # in the result, rank 0's images come first
                book.figure("examples", example_grid(pictures, true, guessed, space), step)
                for name in (name for name in CONFUSED if len(space.options[name]) > 1):
                    matrix = confusion_figure(name, result.target, result.predicted, space)
                    book.figure(f"confusion/{name}", matrix, step)
                score = (metrics["accuracy/overall"], -result.loss)
                is_best, best = score > best, max(score, best)
                if is_best:
                    save_checkpoint(run, "best", model, state())
                save_last()
            book.say(
                f"step {step:,}: validation loss {result.loss:.3f}, group {metrics['accuracy/group']:.1%}, "
                f"accuracy {metrics['accuracy/overall']:.1%} of {ceiling:.1%}"
            )
            reason = reason or _stop_reason(stop, runtime)  # this step need not be evaluated twice
        waited, window_images, window_began = 0.0, 0, time.perf_counter()

    book.hparams({name: settings[name] for name in HPARAMS}, metrics)
    if reason is not None and step < total_steps:
        again = "train_classifier" if runtime.world_size == 1 else "torchrun ... -m classifier.train"
        book.say(
            f"stopped after step {step:,}: {reason}; go on with: {again} --resume {shlex.quote(str(run))}"
        )
    book.say(f"saved in {run}; score it on the test images with: eval_classifier {run}")
    book.close()


def _stop_reason(stop: StopWatch, runtime: Runtime) -> str | None:
    """Why to stop now, the same on all ranks: they must stop at the same step."""
    if not runtime.any(stop.reason is not None):
        return None
    return stop.reason or "another rank was told to stop"
