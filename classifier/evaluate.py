"""How well a classifier does: overall, by group, by attribute, against the ceiling; `eval_classifier`."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from classifier.config import EvalConfig
from classifier.data import class_counts, image_batches, image_errors, in_batches, open_images, sample_of
from classifier.embeddings import ClassMeans
from classifier.figures import confused_grid, confusion_figures, worded
from classifier.images.decode import PictureError, decode
from classifier.images.protocol import ImageSet, IntArray, Pixels
from classifier.model import Classifier
from classifier.trained import Trained, open_trained
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition
from sqrtvocab.atomic import write_bytes
from sqrtvocab.errors import UserError
from sqrtvocab.training import Runtime, open_runtime, write_json
from sqrtvocab.training.logbook import unknown_glyphs_as_boxes
from sqrtvocab.training.score_figures import group_confusion_figure, reliability_figure
from sqrtvocab.training.score_report import (
    GroupName,
    group_by_classes,
    members_of,
    score_document,
    score_lines,
    shorten,
)
from sqrtvocab.training.scores import Scores, ScoreSheet
from sqrtvocab.training.vocab_parallel import in_step, no_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP_K = 5  # classes among which to look for the true one
CONFUSED = 6  # pairs of classes shown side by side


class Confusion(NamedTuple):
    """Two classes that are taken for each other."""

    true: int
    predicted: int
    times: int
    """In either direction."""
    row: int
    """An image of the one that was taken for the other."""


@dataclass(frozen=True)
class Evaluation:
    """What a classifier made of N images."""

    loss: float  # mean negative log-likelihood of the true class
    target: IntArray  # [N] true classes
    top: IntArray  # [N, k] the most probable classes, best first
    scores: Scores

    @property
    def predicted(self) -> IntArray:
        """[N] the most probable classes."""
        return self.top[:, 0]

    def accuracies(self) -> dict[str, float]:
        """Shares of the images: class right, group right, class right given the group, class among the k
        best."""
        return {
            "accuracy/overall": self.scores.accuracy,
            "accuracy/group": self.scores.group_accuracy,
            "accuracy/member_given_group": self.scores.member_accuracy,
            f"accuracy/top{self.top.shape[1]}": float(np.mean((self.top == self.target[:, None]).any(1))),
        }

    def confused(self, most: int = 10) -> list[Confusion]:
        """The pairs of classes taken for each other most often."""
        wrong = np.flatnonzero(self.predicted != self.target)
        pairs = np.sort(np.stack([self.target[wrong], self.predicted[wrong]], 1), 1)  # [W, 2]
        _, first, times = np.unique(pairs, axis=0, return_index=True, return_counts=True)
        order = np.lexsort((first, -times))[:most]
        rows = wrong[first[order]].tolist()
        return [
            Confusion(int(self.target[row]), int(self.predicted[row]), int(count), row)
            for row, count in zip(rows, times[order], strict=True)
        ]

    def attributes(self, space: AttributeSpace | None) -> dict[str, float]:
        """For each attribute the share of images in which the predicted class has it right; None has none."""
        if space is None:
            return {}
        right = space.decode(self.predicted) == space.decode(self.target)  # [N, 8]
        return dict(zip(space.names, right.mean(0).tolist(), strict=True))


@torch.inference_mode()
def evaluate(
    model: Classifier,
    batches: Iterable[tuple[Tensor, Tensor]],
    partition: Partition,
    runtime: Runtime,
    top_k: int = TOP_K,
    means: ClassMeans | None = None,
) -> Evaluation:
    """Score `model` on this rank's share of the images; every rank gets the result for all of them.

    Args:
        batches: uint8 images [N, C, height, width] and classes [N].
        partition: what "group" means for a head that has no groups.
        means: gets the embeddings.
    """
    model.eval()
    top_k = min(top_k, model.head.num_classes)
    sheet = ScoreSheet(model.head.num_classes, partition, runtime)
    rows = []
    for batch in in_step(batches, model.head, runtime):
        with runtime.autocast():
            if batch is None:
                hidden, target = no_rows(model.head)
            else:
                images, target = (tensor.to(runtime.device, non_blocking=True) for tensor in batch)
                hidden = model.encoder(images)  # [N, d]
            losses = model.head(hidden, target, reduction="none")
            guesses = model.head.guesses(hidden, target, partition, top_k)
        sheet.add(target, losses, guesses)
        if means is not None:
            means.add(hidden, target)
        rows.append(torch.cat([target[:, None], guesses.classes], 1))  # [N, 1 + k]
    model.train()
    mine = torch.cat(rows) if rows else torch.empty(0, 1 + top_k, dtype=torch.int64)
    table = runtime.gather(mine).numpy()
    scores = sheet.total()
    return Evaluation(scores.loss, table[:, 0], table[:, 1:], scores)


def report(config: EvalConfig) -> None:
    """Run `eval_classifier`: print a table and write it as JSON into the run folder, or name one picture.

    Raises:
        UserError: for input that cannot be used.
        RunError: if a file of images turns out to be damaged, or a worker ends.
    """
    trained = open_trained(config.run, config.checkpoint)
    settings, model, partition, classes = trained.config, trained.model, trained.partition, trained.classes
    with open_runtime(config.device, config.precision, settings.seed) as runtime:
        model.to(runtime.device)
        partition.to(runtime.device)
        if config.image is not None:
            _name_picture(config.image, config.top_k, trained, runtime)
            return
        skip_damaged = settings.skip_damaged or config.skip_damaged
        moved = replace(settings, data=config.data or settings.data, skip_damaged=skip_damaged)
        if moved.has_shapes != (trained.own_classes is None):
            known = "shapes" if trained.own_classes is None else f"pictures of {len(classes):,} classes"
            raise UserError(f"--data {moved.data}: its labels are not the model's, which knows {known}")
        source = open_images(moved, runtime.say, trained.own_classes)
        images = source[config.split]
        if not len(images):
            raise UserError(f"--split {config.split}: {moved.data} has no images for it")
        chosen = sample_of(images, config.images, settings.seed)
        batches = image_batches(images, in_batches(chosen, config.batch_size), config.workers, runtime)
        print(runtime.describe())
        for note in source.notes:
            print(note)
        progress = tqdm(
            batches, total=-(-len(chosen) // config.batch_size), unit="batch", leave=False, disable=None
        )
        with image_errors(moved.data):
            result = evaluate(model, progress, partition, runtime, config.top_k)
            pairs = [
                side_by_side(one, images, chosen[one.row], source["train"])
                for one in result.confused(CONFUSED)
            ]

    ceiling = images.ceiling()
    counts = class_counts(source["train"]).numpy()
    details = score_document(result.scores, counts, name_groups(partition, classes, counts, trained.space))
    details["confused"] = [
        {"true": classes[pair.true], "predicted": classes[pair.predicted], "images": pair.times}
        for pair in result.confused()
    ]
    rows = {
        name.removeprefix("accuracy/").replace("_", " "): share for name, share in result.accuracies().items()
    }
    if trained.taxonomy is not None:
        rows["super-class"] = trained.taxonomy.right(result.target, result.predicted)
    document = {
        "run": str(config.run),
        "checkpoint": config.checkpoint,
        "step": trained.checkpoint.state["step"],
        "head": settings.head,
        "backbone": settings.backbone,
        "classes": len(classes),
        "split": config.split,
        "images": len(chosen),
        "loss": result.loss,
        "accuracy": rows,
        **details,
    }
    print(
        f"{settings.head} head, step {document['step']:,} ({config.checkpoint}), {len(chosen):,} "
        f"{config.split} images of {len(classes):,} classes: loss {result.loss:.3f}\n"
    )
    print(f"{'':<20}{'accuracy':>9}{'ceiling' if ceiling else '':>9}{'chance':>9}")
    chances = {"overall": 1 / len(classes), "group": 1 / partition.num_groups}
    for name, share in {**rows, "mean over classes": result.scores.mean_class_accuracy}.items():
        top = f"{ceiling.overall:>9.1%}" if ceiling and name == "overall" else " " * 9
        chance = f"{chances[name]:>9.2%}" if name in chances else ""
        print(f"{name:<20}{share:>9.2%}{top}{chance}")
    space = trained.space
    if space is not None and ceiling is not None:
        attributes = result.attributes(space)
        document["attributes"] = attributes
        document["ceiling"] = {"overall": ceiling.overall, "attributes": ceiling.by_attribute}
        print()
        for (name, share), radix in zip(attributes.items(), space.radices, strict=True):
            print(f"{name:<20}{share:>9.2%}{ceiling.by_attribute[name]:>9.1%}{1 / radix:>9.2%}")
    print("\n".join(score_lines(details, "images")))
    if details["confused"]:
        print("\nclasses taken for each other\n" + "\n".join(map(confusion_line, details["confused"])))
    path = config.run / f"eval-{config.split}.json"
    write_json(path, document)
    figures = {
        "confused": confused_grid(pairs, classes if space is None else space) if pairs else None,
        "reliability": reliability_figure(result.scores),
        "groups": group_confusion_figure(result.scores),
        **confusion_figures(result.target, result.predicted, space),
    }
    written = [name for name, figure in figures.items() if write_picture(path, name, figure)]
    print(f"\nsaved as {path}, with pictures: {path.stem}-{{{','.join(written)}}}.png")


def side_by_side(
    one: Confusion, images: ImageSet, index: int, train: ImageSet
) -> tuple[Pixels, Pixels, int, int, int]:
    """What `confused_grid` shows of two classes: the image `index` that was taken for another class, and an
    image of that class."""
    image = images.batch([index])[0][0]
    for rivals in (images, train):  # a rare class has none for validation
        if len(found := np.flatnonzero(rivals.labels == one.predicted)):
            return image, rivals.batch(found[:1])[0][0], one.true, one.predicted, one.times
    return image, np.full_like(image, 255), one.true, one.predicted, one.times


def write_picture(scores: Path, name: str, figure: Figure | None) -> bool:
    """Write a figure beside the file of the scores it belongs to; None removes that of older scores."""
    path = scores.with_name(f"{scores.stem}-{name}.png")
    if figure is None:
        path.unlink(missing_ok=True)
        return False
    picture = io.BytesIO()
    with unknown_glyphs_as_boxes():
        figure.savefig(picture, format="png", dpi=2 * figure.dpi)  # on paper or a screen of today
    write_bytes(path, picture.getvalue())
    return True


def name_groups(
    partition: Partition, classes: Sequence[str], counts: npt.ArrayLike, space: AttributeSpace | None
) -> GroupName:
    """Names a group by the attributes that its classes share, or else by some of its classes."""
    by_classes = group_by_classes(partition, classes, counts)

    def name(group: int) -> str:
        assert space is not None
        members = members_of(partition, group).tolist()
        digits = space.decode(np.array(members))  # [S, 8]
        shared = []
        for (attribute, options), column in zip(space.options.items(), digits.T, strict=True):
            found = np.unique(column)
            low, high = (worded(attribute, options[end]) for end in (found[0], found[-1]))
            if len(found) == 1 and len(options) > 1:
                shared.append(low)
            elif len(found) == found[-1] - found[0] + 1 < len(options):  # groups may cut an attribute in two
                shared.append(f"{low} to {high}")
        return " ".join(shared) or by_classes(group)

    return by_classes if space is None else name


def confusion_line(pair: Mapping[str, Any]) -> str:
    """Two classes that are taken for each other, in a line of a terminal."""
    true, predicted = (shorten(pair[end], 32) for end in ("true", "predicted"))
    return f"{pair['images']:>7,}  {true} | {predicted}"


def _name_picture(path: Path, top_k: int, trained: Trained, runtime: Runtime) -> None:
    space, classes, model = trained.space, trained.classes, trained.model
    try:
        pixels = decode(path.read_bytes(), trained.image_size, trained.channels)  # [size, size, C]
    except (OSError, PictureError) as error:
        raise UserError(f"--image {path}: not a readable picture ({error})") from error
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # [1, C, size, size]
    print(runtime.describe())
    with torch.inference_mode(), runtime.autocast():
        hidden = model.eval().encoder(images.to(runtime.device))
        log_probs, found = model.head.topk(hidden, min(top_k, len(classes)))
    columns = ["name"] if space is None else [f"{name:<9}" for name in space.names]
    print(f"{'probability':>11}  {'class':>7}  " + "  ".join(columns))
    for log_prob, class_id in zip(log_probs[0].tolist(), found[0].tolist(), strict=True):
        options = [classes[class_id]] if space is None else space.describe(class_id).values()
        print(
            f"{math.exp(log_prob):>11.2%}  {class_id:>7}  " + "  ".join(f"{option:<9}" for option in options)
        )
