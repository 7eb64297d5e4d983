"""How the runs of one experiment look in TensorBoard: section, meaning of each tag, curves in one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorboard.compat.proto import summary_pb2
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import custom_scalars

# What TensorBoard calls each kind of value. It ignores a description that comes without.
_KINDS = {
    "simple_value": ("scalars", summary_pb2.DATA_CLASS_SCALAR),
    "image": ("images", summary_pb2.DATA_CLASS_BLOB_SEQUENCE),
    "histo": ("histograms", summary_pb2.DATA_CLASS_TENSOR),
}

# The tags that mean the same in every experiment.
SHARED = {
    "config": "The settings of the run: the flags, and what was found out from them and the data.",
    "learning_rate": "Adam's learning rate in the last step of the interval.",
    "loss/train": "Mean negative log-likelihood of the true class in training since the last point, in nats.",
    "loss/group": "The group's share of the training loss, −log P(group).",
    "loss/member": "The member's share of the training loss, −log P(class | group).",
    "loss/validation": "Mean negative log-likelihood of the true class on the validation data, in nats.",
    "gradient/norm": "Length of the whole gradient before any clipping, the mean since the last point.",
    "gradient/clipped": "Share of the steps since the last point whose gradient was too long and shortened.",
    "memory/peak": "Most memory held so far, in GiB: by tensors on the GPU, or by the process on a CPU.",
    "accuracy/group": "Share of the validation data whose group was predicted right.",
    "accuracy/mean_over_classes": "The mean of the classes' accuracies: each that occurs counts as much.",
    "accuracy_by_frequency": "Accuracy on classes that are rare, middling or frequent in the training data; "
    "each band holds about a third of it.",
    "loss_by_frequency": "Loss on classes that are rare, middling or frequent in the training data; each "
    "band holds about a third of it.",
    "calibration/error": "Expected calibration error: by how much the probability of the best class and the "
    "share of cases in which it is right differ.",
    "calibration/reliability": "How often the best class is right, by the probability given to it. A "
    "calibrated model keeps to the diagonal; bars show how many predictions there are.",
    "confusion/groups": "Which group the validation data of each group are taken for; rows (truth) sum to "
    "1. Groups in their order, several to a cell where there are many.",
    "groups": "The ten groups with the lowest and the highest loss, of those with enough validation data.",
    "probability/true_group": "Histogram over the validation data of P(true group).",
}


@dataclass(frozen=True)
class Board:
    """How runs look in TensorBoard.

    Args:
        section: goes before every tag, so that runs of different experiments under one folder have charts of
            their own; none by default.
        descriptions: what a tag means, by the tag or by its part before the slash.
        charts: titles -> tags whose curves are drawn in one chart (the tab "Custom Scalars").
    """

    section: str = ""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    charts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def tag(self, tag: str) -> str:
        """A tag as TensorBoard shows it."""
        return f"{self.section}: {tag}" if self.section else tag

    def describe(self, tag: str) -> str:
        """What a tag means; empty if nobody has said it."""
        known = {**SHARED, **self.descriptions}
        return known.get(tag) or known.get(tag.split("/")[0], "")

    def described(self, summary: Summary, tag: str) -> Summary:
        """`summary` with the description of `tag`."""
        for value in summary.value:
            kind = _KINDS.get(str(value.WhichOneof("value")))
            if kind is not None:
                value.metadata.plugin_data.plugin_name, value.metadata.data_class = kind
            value.metadata.summary_description = self.describe(tag)
        return summary

    def layout(self) -> Summary | None:
        """The charts that several curves share."""
        if not self.charts:
            return None
        # TensorBoard matches beginnings: loss/validation would be loss/validation_group, too.
        ends = {title: [f"{self.tag(tag)}$" for tag in tags] for title, tags in self.charts.items()}
        charts = {title: ["Multiline", tags] for title, tags in ends.items()}
        return custom_scalars({self.section or "runs": charts})
