"""The page of `compare_optimizers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.common.command import command_line
from scripts.common.means import Mean, paired
from scripts.common.pages import table
from scripts.common.records import Row

FLAT, OURS = "flat", "grouped-linear"  # contenders
NAMES = {"sgd": "SGD", "adam": "Adam"}
WHY = (
    "Why: in a step of SGD the score of an output of frequency p moves by about the rate times p, and the "
    "loss curves by p·(1 − p) along it. {numbers} At one rate the group layer is therefore unstable where a "
    "flat head is not. A rate inverse to the largest curvature makes it stable and leaves it behind flat; "
    "`head.parameter_groups` asks for one at which a token moves the score of its group, on average, as far "
    "as a flat head moves that of its word, Σ p² of the words by Σ p² of the groups. The members are as "
    "frequent as the words, and keep the full rate. Adam divides each step by the size of its gradients and "
    "needs no such thing."
)


def pages(rows: Sequence[Row], titles: Mapping[str, str]) -> list[str]:
    """The Markdown, part by part."""
    parts = [
        "# Heads under SGD",
        "A word-level LSTM (2 x 200, 20 columns of text, 35 words back, gradient clipped to 0.25, as in "
        "PyTorch's word_language_model), one epoch of the words named, every head with its prior. Validation "
        "loss in nats a word; ± is half of a 95 % interval over seeds (Student t). *Curvature* is the "
        "largest p·(1 − p) of the words, or of the groups where there are any; *slower* is the rate of the "
        "group layer in parts of the rate. [The record](optimizers.csv). Last written by:",
        command_line(),
        WHY.format(numbers=_numbers(rows)),
    ]
    for text in dict.fromkeys(row["text"] for row in rows):
        here = [row for row in rows if row["text"] == text]
        parts += [f"## {text}", f"{', '.join(sorted({row['machine'] for row in here}))}."]
        for optimizer in (name for name in NAMES if any(row["optimizer"] == name for row in here)):
            some = [row for row in here if row["optimizer"] == optimizer]
            parts += [f"### {NAMES[optimizer]}", _table(some, titles)]
    return parts


def _numbers(rows: Sequence[Row]) -> str:
    """The sentence with the numbers; without rows to tell them it is a general one."""
    words = next((row["curvature"] for row in rows if row["contender"] == FLAT), None)
    groups = next((row for row in rows if row["contender"] == OURS), None)
    if words is None or groups is None:
        return "A group is more frequent than its words."
    return (
        f"Of the words here the largest curvature is {float(words):.3f}; of the groups by frequency, whose "
        f"first holds the most frequent words, it is {float(groups['curvature']):.3f}, and the group of a "
        f"token is on average {1 / float(groups['slower']):.0f} times as frequent as its word."
    )


def _table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    losses: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        losses.setdefault((row["contender"], row["lr"]), {})[row["seed"]] = float(row["loss"])
    firsts = {(row["contender"], row["lr"]): row for row in reversed(rows)}
    lines = []
    for name in titles:
        for (contender, rate), of_seeds in sorted(losses.items(), key=lambda item: float(item[0][1])):
            if contender != name:
                continue
            first, rival = firsts[contender, rate], losses.get((FLAT, rate), {})
            less = paired(of_seeds, rival) if contender != FLAT else None
            lines.append(
                [
                    titles[contender],
                    rate,
                    len(of_seeds),
                    Mean.of(list(of_seeds.values())).show(3),
                    less.show(3, "+") if less else "",
                    f"{float(first['curvature']):.3f}",
                    f"{float(first['slower']):.2f}",
                ]
            )
    header = ["head", "rate", "n", "validation loss", "less flat at that rate", "curvature", "slower"]
    return table(header, lines)
