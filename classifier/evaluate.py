"""How well a classifier does: overall, by group, by attribute, against the ceiling; `eval_classifier`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from classifier.cnn import IMAGE_SIZE, Classifier, make_classifier, make_partition
from classifier.config import EvalConfig, TrainConfig
from classifier.data import ceiling_of, image_batches, image_errors, in_batches, open_images, sample_of
from shapesgen.attributes import AttributeSpace
from sqrtvocab import Partition
from sqrtvocab.errors import UserError
from sqrtvocab.training import Runtime, load_checkpoint, open_runtime, write_json

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """What a classifier made of N images."""

    loss: float  # mean negative log-likelihood of the true class
    target: IntArray  # [N] true classes
    top: IntArray  # [N, k] the most probable classes, best first
    in_group: IntArray  # [N] 1 where the group was right
    in_member: IntArray  # [N] 1 where the class is the most probable one of its group

    @property
    def predicted(self) -> IntArray:
        """[N] the most probable classes."""
        return self.top[:, 0]

    def accuracies(self) -> dict[str, float]:
        """Shares of the images: class right, group right, class right given the group, class among the k
        best."""
        return {
            "accuracy/overall": float(np.mean(self.predicted == self.target)),
            "accuracy/group": float(np.mean(self.in_group)),
            "accuracy/member_given_group": float(np.mean(self.in_member)),
            f"accuracy/top{self.top.shape[1]}": float(np.mean((self.top == self.target[:, None]).any(1))),
        }

    def attributes(self, space: AttributeSpace) -> dict[str, float]:
        """For each attribute the share of images in which the predicted class has it right."""
        right = space.decode(self.predicted) == space.decode(self.target)  # [N, 8]
        return dict(zip(space.names, right.mean(0).tolist(), strict=True))


@torch.inference_mode()
def evaluate(
    model: Classifier,
    batches: Iterable[tuple[Tensor, Tensor]],
    partition: Partition,
    runtime: Runtime,
    top_k: int = 5,
) -> Evaluation:
    """Score `model` on this rank's share of the images; every rank gets the result for all of them.

    Args:
        batches: uint8 images [N, 3, 100, 100] and classes [N].
        partition: what "group" means for a head that has no groups.
    """
    model.eval()
    top_k = min(top_k, model.head.num_classes)
    loss_sum = torch.zeros((), device=runtime.device)
    rows = []
    for images, target in batches:
        images = images.to(runtime.device, non_blocking=True)
        target = target.to(runtime.device, non_blocking=True)
        with runtime.autocast():
            hidden = model.encoder(images)  # [N, 512]
            loss_sum += model.head(hidden, target, reduction="sum").loss
            guesses = model.head.guesses(hidden, target, partition, top_k)
        right_group = guesses.group == partition.split(target)[0]  # [N]
        right_member = guesses.in_group == target  # [N]
        columns = [
            target[:, None],
            right_group[:, None].long(),
            right_member[:, None].long(),
            guesses.classes,
        ]
        rows.append(torch.cat(columns, 1))  # [N, 3 + k]
    model.train()
    mine = torch.cat(rows) if rows else torch.empty(0, 3 + top_k, dtype=torch.int64)
    table = runtime.gather(mine).numpy()
    mean_loss = float(runtime.sum(loss_sum)) / len(table)
    return Evaluation(mean_loss, table[:, 0], table[:, 3:], table[:, 1], table[:, 2])


def report(config: EvalConfig) -> None:
    """Run `eval_classifier`: print a table and write it as JSON into the run folder, or name one picture.

    Raises:
        UserError: for input that cannot be used.
        RunError: if a file of images turns out to be damaged, or a worker ends.
    """
    moved = {} if config.data is None else {"data": config.data}
    trained = TrainConfig.of_run(config.run, **moved)
    checkpoint = load_checkpoint(config.run, config.checkpoint)
    if checkpoint is None:
        raise UserError(f"{config.run}: no checkpoint `{config.checkpoint}`; the first evaluation writes it")
    space = trained.space()
    partition = make_partition(space, trained.grouping, trained.num_groups, trained.seed)
    model = make_classifier(trained.head, partition, **trained.head_options())
    checkpoint.load_weights(model)
    with open_runtime(config.device, config.precision, trained.seed) as runtime:
        model.to(runtime.device)
        partition.to(runtime.device)
        if config.image is not None:
            _name_picture(config.image, config.top_k, model, space, runtime)
            return
        images = open_images(trained, config.split)
        chosen = sample_of(images, config.images, trained.seed)
        batches = image_batches(images, in_batches(chosen, config.batch_size), config.workers, runtime)
        print(runtime.describe())
        progress = tqdm(batches, total=-(-len(chosen) // config.batch_size), unit="batch", leave=False)
        with image_errors(trained.data):
            result = evaluate(model, progress, partition, runtime, config.top_k)

    ceiling = ceiling_of(trained)
    rows = {
        name.removeprefix("accuracy/").replace("_", " "): share for name, share in result.accuracies().items()
    }
    document = {
        "run": str(config.run),
        "checkpoint": config.checkpoint,
        "step": checkpoint.state["step"],
        "head": trained.head,
        "classes": space.num_classes,
        "split": config.split,
        "images": len(chosen),
        "loss": result.loss,
        "accuracy": rows,
        "attributes": result.attributes(space),
        "ceiling": {"overall": ceiling.overall, "attributes": ceiling.by_attribute},
    }
    print(
        f"{trained.head} head, step {checkpoint.state['step']:,} ({config.checkpoint}), {len(chosen):,} "
        f"{config.split} images of {space.num_classes:,} classes: loss {result.loss:.3f}\n"
    )
    print(f"{'':<20}{'accuracy':>9}{'ceiling':>9}{'chance':>9}")
    chances = {"overall": 1 / space.num_classes, "group": 1 / partition.num_groups}
    for name, share in rows.items():
        top = f"{ceiling.overall:>9.1%}" if name == "overall" else " " * 9
        chance = f"{chances[name]:>9.2%}" if name in chances else ""
        print(f"{name:<20}{share:>9.2%}{top}{chance}")
    print()
    for (name, share), radix in zip(document["attributes"].items(), space.radices, strict=True):
        print(f"{name:<20}{share:>9.2%}{ceiling.by_attribute[name]:>9.1%}{1 / radix:>9.2%}")
    path = config.run / f"eval-{config.split}.json"
    write_json(path, document)
    print(f"\nsaved as {path}")


def _name_picture(path: Path, top_k: int, model: Classifier, space: AttributeSpace, runtime: Runtime) -> None:
    pixels = _read_picture(path)  # [1, 3, 100, 100]
    print(runtime.describe())
    with torch.inference_mode(), runtime.autocast():
        hidden = model.eval().encoder(pixels.to(runtime.device))
        log_probs, classes = model.head.topk(hidden, min(top_k, space.num_classes))
    print(f"{'probability':>11}  {'class':>7}  " + "  ".join(f"{name:<9}" for name in space.names))
    for log_prob, class_id in zip(log_probs[0].tolist(), classes[0].tolist(), strict=True):
        options = "  ".join(f"{option:<9}" for option in space.describe(class_id).values())
        print(f"{math.exp(log_prob):>11.2%}  {class_id:>7}  {options}")


def _read_picture(path: Path) -> Tensor:
    """A picture as the model sees images: uint8 [1, 3, 100, 100]; what is transparent becomes white."""
    try:
        with Image.open(path) as file:
            picture = file.convert("RGBA")
    except OSError as error:  # UnidentifiedImageError too
        raise UserError(f"--image {path}: not a readable picture ({error})") from error
    if picture.size != (IMAGE_SIZE, IMAGE_SIZE):
        width, height = picture.size
        raise UserError(
            f"--image {path} has {width} x {height} pixels, the model reads {IMAGE_SIZE} x {IMAGE_SIZE}"
        )
    white = Image.new("RGBA", picture.size, "white")
    pixels = np.asarray(Image.alpha_composite(white, picture).convert("RGB"))  # [100, 100, 3]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
