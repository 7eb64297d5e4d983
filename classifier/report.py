"""What a run tells of itself: how it begins, and what each look at its validation images shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from classifier.config import TrainConfig
from classifier.data import class_counts, image_batches, in_batches, sample_of
from classifier.embeddings import ClassMeans, show_classes
from classifier.evaluate import CONFUSED, TOP_K, Evaluation, evaluate, name_groups, side_by_side
from classifier.examples import held_out
from classifier.figures import confused_grid, confusion_figures, example_grid
from classifier.images.protocol import ImageSource
from classifier.labels import Labels
from classifier.model import Classifier
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition
from sqrtvocab.training import BatchPlan, Runtime
from sqrtvocab.training.board import Board
from sqrtvocab.training.class_plan import ClassPlan
from sqrtvocab.training.logbook import Logbook
from sqrtvocab.training.score_figures import show_scores
from sqrtvocab.training.scores import BANDS
from sqrtvocab.training.tally import not_finite

EXAMPLES = 12  # validation images shown with captions

BOARD = Board(
    "images",
    {
        "accuracy/overall": "Share of the validation images whose class is the most probable one.",
        "accuracy/member_given_group": "Share of the validation images whose class is the most probable one "
        "of its group.",
        "accuracy/top5": "Share of the validation images whose class is among the five most probable ones.",
        "accuracy": "Share of the validation images whose class is among the most probable ones.",
        "accuracy/trained_classes": "Accuracy on the classes that were trained, where others were held out.",
        "accuracy/held_out_classes": "Accuracy on the classes of which no image was trained on.",
        "accuracy/super_class": "Share of the validation images whose super-class was predicted.",
        "accuracy/ceiling": "The most that any classifier can reach on these images.",
        "attribute": "Share of the validation images for which the class predicted has this attribute right.",
        "confusion": "Which option of the attribute is taken for which; rows (truth) sum to 1.",
        "confused_pairs": "The classes taken for each other most often: an image of the true one on the "
        "left, one of the class predicted on the right.",
        "examples": "Validation images, always the same ones; what was predicted wrong is red.",
        "speed/images_per_s": "Images trained on each second, evaluations left out.",
        "speed/data_wait_fraction": "Share of the time spent waiting for images by the rank that waits most.",
    },
    {
        "loss": ("loss/train", "loss/validation"),
        "accuracy": ("accuracy/overall", "accuracy/group", "accuracy/ceiling"),
    },
)
BY_FREQUENCY = {
    f"{what} by frequency": tuple(f"{what}_by_frequency/{band}" for band in BANDS)
    for what in ("accuracy", "loss")
}


def make_board(labels: Labels) -> Board:
    """How a run looks in TensorBoard: without charts that would stay empty."""
    return replace(BOARD, charts={**BOARD.charts, **BY_FREQUENCY}) if labels.are_uneven else BOARD


class Validation:
    """The validation images of a run, the same ones every time.

    Args:
        source: `--eval-images` of its validation images are used, shared among the ranks.
        labels: what is known of the classes.
        partition: what "group" means for a head that has no groups.
        workers: processes that draw or read them ahead.
    """

    def __init__(
        self,
        source: ImageSource,
        config: TrainConfig,
        labels: Labels,
        partition: Partition,
        workers: int,
        runtime: Runtime,
    ) -> None:
        self._taxonomy = labels.taxonomy
        self._source, self._images, self._runtime = source, source["validation"], runtime
        self._partition, self._batch_size, self._workers = partition, config.batch_size, workers
        chosen = sample_of(self._images, config.eval_images, config.seed)
        shares = [chosen[rank :: runtime.world_size] for rank in range(runtime.world_size)]
        self._mine = shares[runtime.rank]
        self._rows = [index for share in shares for index in share]  # in the order of an evaluation's rows
        self._counts = class_counts(source["train"]).numpy()
        classes, space = self._images.classes, self._images.space
        self._name_group = name_groups(partition, classes, self._counts, space)
        self._shown: AttributeSpace | Sequence[str] = classes if space is None else space
        self.ceiling = self._images.ceiling() if runtime.is_main else None
        self._means: ClassMeans | None = None
        self._held_out = held_out(config, len(classes))

    def score(self, model: Classifier, step: int, is_last: bool = False) -> Evaluation:
        """What `model` makes of the images; every rank gets the same result.

        Args:
            is_last: keep what the projector shows.

        Raises:
            RunError: if the loss is not finite.
        """
        batches = in_batches(self._mine, self._batch_size)
        loader = image_batches(self._images, batches, self._workers, self._runtime)
        self._runtime.share(
            model.encoder.buffers()
        )  # of batch norms, which every rank has seen other images with
        if is_last:
            labels = self._images.labels[self._rows]
            self._means = ClassMeans(labels, len(self._images.classes), self._runtime)
        result = evaluate(model, loader, self._partition, self._runtime, TOP_K, self._means)
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
            **result.scores.scalars(self._counts),
            **{f"attribute/{name}": share for name, share in attributes.items()},
        }

    def _by_training(self, result: Evaluation) -> dict[str, float]:
        """The accuracy on classes that were trained and on those that were held out, if any were."""
        if not self._held_out.any():
            return {}
        right, out = result.predicted == result.target, self._held_out[result.target]
        parts = {"accuracy/trained_classes": right[~out], "accuracy/held_out_classes": right[out]}
        return {name: float(part.mean()) for name, part in parts.items() if len(part)}

    def show(self, book: Logbook, run: Path, result: Evaluation, step: int) -> None:
        """Draw the pictures in TensorBoard; after the last evaluation the projector's, too.

        Raises:
            RunError: the disk is full.
        """
        vectors = None if self._means is None else self._means.total()  # of all ranks
        if not self._runtime.is_main:
            return
        pictures, true = self._images.batch(self._mine[:EXAMPLES])
        guessed = result.predicted[: len(true)]  # in the result, rank 0's images come first
        book.figure("examples", example_grid(pictures, true, guessed, self._shown), step)
        if confused := result.confused(CONFUSED):
            train = self._source["train"]
            pairs = [side_by_side(one, self._images, self._rows[one.row], train) for one in confused]
            book.figure("confused_pairs", confused_grid(pairs, self._shown), step)
        for name, matrix in confusion_figures(result.target, result.predicted, self._images.space).items():
            book.figure(f"confusion/{name}", matrix, step)
        show_scores(book, result.scores, self._counts, self._name_group, "images", step)
        if self._means is not None and vectors is not None:
            show_classes(run, self._means, vectors, self._images, self._images.classes)

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
    parameters: Mapping[str, int],
) -> dict[str, str]:
    """What is to be known of a run when it begins, in the order in which to say it."""
    images = source["train"]
    facts = {"data": f"{len(images.classes):,} classes, {len(images):,} training images {source.where}"}
    if config.has_shapes and (kept := config.space().describe_only()):
        facts["only"] = kept
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
    facts["parameters"] = "; ".join(f"{part} {count:,}" for part, count in parameters.items())
    total_steps = config.total_steps(plan.steps_per_epoch)
    facts["steps"] = f"{total_steps:,} of {plan.effective_batch:,} images; {plan.steps_per_epoch:,} an epoch"
    if validation.ceiling is not None:
        most = f"{validation.ceiling.overall:.1%}"
        facts["ceiling"] = f"{most}, the most that any classifier can reach on these images"
    return facts
