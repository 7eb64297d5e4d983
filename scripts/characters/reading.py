"""What a trained classifier reads in the pictures of a split: by family, and in classes never trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from classifier.data import image_batches, in_batches, open_images
from classifier.evaluate import evaluate
from classifier.examples import held_out
from classifier.trained import open_trained
from shapesgen.choices import Split
from sqrtvocab.errors import RunError
from sqrtvocab.training import open_runtime

_AT_ONCE = 256  # pictures

Score = tuple[int, float]  # pictures, and the share of them that is read right


@dataclass(frozen=True)
class Reading:
    """N pictures as they were read."""

    is_right: npt.NDArray[np.bool_]  # [N]
    families: npt.NDArray[np.str_]  # [N]
    is_new: npt.NDArray[np.bool_]  # [N] of a class that was held out of training

    def by_family(self) -> dict[str, Score]:
        """Of each family."""
        return {str(family): self._score(self.families == family) for family in np.unique(self.families)}

    def of_new_classes(self) -> Score:
        """Of the classes that were held out."""
        return self._score(self.is_new)

    def _score(self, mine: npt.NDArray[np.bool_]) -> Score:
        return int(mine.sum()), float(self.is_right[mine].mean())


def read_split(run: Path, data: Path, split: Split = "test") -> Reading:
    """Let a run read all pictures of a split of the set that `render_characters` wrote, with the weights that
    `eval_classifier` takes.

    Raises:
        RunError: the set is not the one that the run reads.
    """
    trained = open_trained(run)
    with open_runtime("cpu", "fp32", trained.config.seed) as runtime:
        images = open_images(replace(trained.config, data=data), runtime.say, trained.own_classes)[split]
        batches = image_batches(images, in_batches(list(range(len(images))), _AT_ONCE), 0, runtime)
        result = evaluate(trained.model, batches, trained.partition, runtime, 1)
    files = sorted((data / "data").glob(f"{split}-*.parquet"))
    table = pa.concat_tables([pq.read_table(file, columns=["label", "family"]) for file in files])
    if not np.array_equal(table["label"].to_numpy(), result.target):
        raise RunError(f"{data}: its pictures are not in the order in which {run} reads them")
    is_new = held_out(trained.config, len(trained.classes))[result.target]
    families = np.array(table["family"].to_pylist(), dtype=np.str_)
    return Reading(result.predicted == result.target, families, is_new)
