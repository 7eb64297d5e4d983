"""What a run tells of itself: how it begins, and what each look at its validation images shows."""

from __future__ import annotations

import math

from classifier.config import TrainConfig
from classifier.data import image_batches, in_batches, sample_of
from classifier.evaluate import Evaluation, evaluate
from classifier.examples import held_out
from classifier.figures import confusion_figures, example_grid
from classifier.images.protocol import ImageSet, ImageSource
from classifier.labels import Labels
from classifier.model import Classifier, parameter_table
from sqrtvocab import Partition
from sqrtvocab.training import BatchPlan, Runtime
from sqrtvocab.training.class_plan import ClassPlan
from sqrtvocab.training.logbook import Logbook
from sqrtvocab.training.tally import not_finite

EXAMPLES = 12  # validation images shown with captions


class Validation:
    """The validation images of a run, the same ones every time.

    Args:
        images: all that there are; `--eval-images` of them are used, shared among the ranks.
        labels: what is known of the classes.
        partition: what "group" means for a head that has no groups.
        workers: processes that draw or read them ahead.
    """

    def __init__(
        self,
        images: ImageSet,
        config: TrainConfig,
        labels: Labels,
        partition: Partition,
        workers: int,
        runtime: Runtime,
    ) -> None:
        self._taxonomy = labels.taxonomy
        self._images, self._partition, self._runtime = images, partition, runtime
        self._batch_size, self._workers = config.batch_size, workers
        self._mine = sample_of(images, config.eval_images, config.seed)[runtime.rank :: runtime.world_size]
        self.ceiling = images.ceiling() if runtime.is_main else None
        self._held_out = held_out(config, len(images.classes))

    def score(self, model: Classifier, step: int) -> Evaluation:
        """What `model` makes of the images; every rank gets the same result.

        Raises:
            RunError: if the loss is not finite.
        """
        batches = in_batches(self._mine, self._batch_size)
        loader = image_batches(self._images, batches, self._workers, self._runtime)
        self._runtime.share(model.buffers())  # of batch norms, which every rank has seen other images with
        result = evaluate(model, loader, self._partition, self._runtime)
        if not math.isfinite(result.loss):
            raise not_finite("validation loss", step)
        return result

    def metrics(self, result: Evaluation) -> dict[str, float]:
        """For TensorBoard."""
        attributes, super_class = result.attributes(self._images.space), {}
        if self._taxonomy is not None:
            super_class["accuracy/super_class"] = self._taxonomy.right(result.target, result.predicted)
        return {
            "loss/validation": result.loss,
            **result.accuracies(),
            **self._by_training(result),
            **super_class,
            **({"accuracy/ceiling": self.ceiling.overall} if self.ceiling else {}),
            **{f"attribute/{name}": share for name, share in attributes.items()},
        }

    def _by_training(self, result: Evaluation) -> dict[str, float]:
        """The accuracy on classes that were trained and on those that were held out, if any were."""
        if not self._held_out.any():
            return {}
        right, out = result.predicted == result.target, self._held_out[result.target]
        parts = {"accuracy/trained_classes": right[~out], "accuracy/held_out_classes": right[out]}
        return {name: float(part.mean()) for name, part in parts.items() if len(part)}

    def show(self, book: Logbook, result: Evaluation, step: int) -> None:
        """Draw the pictures in TensorBoard."""
        if not self._runtime.is_main:
            return
        space = self._images.space
        pictures, true = self._images.batch(self._mine[:EXAMPLES])
        guessed = result.predicted[: len(true)]  # in the result, rank 0's images come first
        grid = example_grid(pictures, true, guessed, self._images.classes if space is None else space)
        book.figure("examples", grid, step)
        for name, matrix in confusion_figures(result.target, result.predicted, space).items():
            book.figure(f"confusion/{name}", matrix, step)

    def summary(self, metrics: dict[str, float]) -> str:
        """The most important of the numbers, in a phrase."""
        most = f" of {self.ceiling.overall:.1%}" if self.ceiling else ""
        return (
            f"validation loss {metrics['loss/validation']:.3f}, group {metrics['accuracy/group']:.1%}, "
            f"accuracy {metrics['accuracy/overall']:.1%}{most}"
            + "".join(
                f", {name.replace('_', ' ')} {metrics[f'accuracy/{name}']:.1%}"
                for name in ("trained_classes", "held_out_classes")
                if f"accuracy/{name}" in metrics
            )
        )


def opening_facts(
    config: TrainConfig,
    source: ImageSource,
    labels: Labels,
    model: Classifier,
    partition: Partition,
    plan: BatchPlan | ClassPlan,
    validation: Validation,
) -> dict[str, str]:
    """What is to be known of a run when it begins, in the order in which to say it."""
    images = source["train"]
    facts = {"data": f"{len(images.classes):,} classes, {len(images):,} training images {source.where}"}
    if source.notes:
        facts["note"] = "; ".join(source.notes)
    if config.backbone != "cnn":
        size = images.shape[0]
        facts["backbone"] = f"{config.backbone} on {size} x {size} pixels, weights {config.weights}"
    facts["head"] = f"{config.head}, {model.head.describe()}"
    facts["groups"] = f"{partition.num_groups} of at most {partition.group_size} classes ({config.grouping})"
    if not model.head.has_groups:
        facts["groups"] += "; used only to report accuracy/group"
    if labels.taxonomy is not None:
        facts["taxonomy"] = labels.taxonomy.describe(partition)
    if config.prior or labels.are_uneven:
        facts["prior"] = labels.describe_prior(bool(config.prior))
    facts["parameters"] = "; ".join(f"{part} {count:,}" for part, count in parameter_table(model).items())
    total_steps = config.total_steps(plan.steps_per_epoch)
    facts["steps"] = f"{total_steps:,} of {plan.effective_batch:,} images; {plan.steps_per_epoch:,} an epoch"
    if validation.ceiling is not None:
        most = f"{validation.ceiling.overall:.1%}"
        facts["ceiling"] = f"{most}, the most that any classifier can reach on these images"
    return facts
