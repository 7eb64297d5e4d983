"""The page of `table1_quality`: our losses and scores beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scripts.common.command import command_with, values_of
from scripts.common.contenders import LM
from scripts.common.jobs import Contender, about_older, length_of, rate_of
from scripts.common.means import Mean, paired
from scripts.common.pages import table
from scripts.common.records import Row

# The first three are contenders of `compare_heads.py lm`: what one of the two scripts has trained, with the
# same settings and --runs, the other takes as it is.
MODELS = {
    "grouped": replace(LM["grouped"], title="ours: GPT-2 with the paper's head"),
    "grouped-linear": replace(LM["grouped-linear"], title="ours: GPT-2 with the default head"),
    "flat-tied": replace(LM["flat-tied"], title="GPT-2"),
    "gpt-neo": Contender("GPT-Neo", "--backbone gpt-neo --head flat --tie-embeddings --no-prior", cost=5),
}
SCORES = ("grammar", "creativity", "consistency", "plot", "age")
PAPER = {
    ("flat-tied", 128): (3.8, 4.22, 3.7, 2.95, 4.55),
    ("flat-tied", 256): (4.65, 3.6, 6.05, 4.82, 4.75),
    ("flat-tied", 512): (5.82, 3.9, 7.15, 5.75, 4.9),
    ("gpt-neo", 128): (3.7, 3.72, 4.05, 2.97, 4.5),
    ("gpt-neo", 256): (4.77, 4.1, 5.85, 4.57, 4.65),
    ("gpt-neo", 512): (5.15, 4.17, 6.65, 5.22, 5.0),
    ("grouped", 128): (3.53, 3.62, 4.5, 3.25, 4.55),
    ("grouped", 256): (4.85, 4.3, 5.87, 4.47, 4.7),
    ("grouped", 512): (5.15, 4.025, 6.7, 5.475, 4.96),
}
ORDER = ("flat-tied", "gpt-neo", "grouped", "grouped-linear")  # of the table; cheap ones are trained first


def judge_of(rows: Sequence[Row]) -> str | None:
    """Who graded most of these rows: the scores of two judges do not mix. None if nobody did."""
    judges = [row.get("judge", "") for row in rows if row.get("grammar")]
    return max(dict.fromkeys(judges), key=judges.count, default=None)


def document(rows: Sequence[Row], older: Sequence[Row] = ()) -> str:
    """The whole Markdown page: a table for each of the settings in the record; older rows are only named."""
    lines = [
        "# Table 1: quality",
        "",
        "Made by the command below each table from [its record](quality.csv); then the command of each "
        "model. The paper grades stories (grammar, creativity, consistency, plot, from 1 to 10, and the "
        "writer's age) after one epoch of TinyStories and gives no loss. Here the models have seen less "
        "text, as the heading says; compare them with each other. Validation loss in nats; ± is half of a "
        "95 % interval over seeds (Student t), n the number of seeds.",
    ]
    for setting, size in dict.fromkeys((shared_settings(row), row["data_bytes"]) for row in rows):
        mine = [row for row in rows if (shared_settings(row), row["data_bytes"]) == (setting, size)]
        first = mine[0]
        places = ", ".join(dict.fromkeys(f"{row['machine']}, torch {row['torch']}" for row in mine))
        lines += [
            "",
            f"## {length_of(first, 'token')}"
            + (f", learning rate {rate}" if (rate := rate_of(first)) else ""),
            "",
            f"`{setting}`, {int(first['training_items']):,} tokens to train on. {places}."
            + (f" Our scores are those of {judge}." if (judge := judge_of(mine)) else ""),
            "",
            quality_table(mine),
            "",
            command_with("scripts/table1_quality.py", flags_of(mine)),
            "",
            "```bash",
            f'settings="{setting}"',
            *(
                f"train_lm $settings --hidden-size {size} {MODELS[name].flags}  # {name}"
                for name in ORDER
                for size in sorted({size_of(row) for row in mine if row["contender"] == name})
            ),
            "```",
        ]
    lines += about_older(older)
    lines += [
        "",
        "- GPT-2 and GPT-Neo have the flat head tied to the embedding, as in `transformers`; GPT-Neo attends "
        "to 256 tokens in every other layer.",
        "- *the paper's head*: `grouped`, consecutive token ids, no prior. *the default head*: "
        "`grouped-linear`, groups by frequency, prior.",
    ]
    return "\n".join(lines)


def quality_table(rows: Sequence[Row]) -> str:
    """A line for each model and size, as in the paper, with what it says about them."""
    judge = judge_of(rows)
    losses: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        losses.setdefault((row["contender"], size_of(row)), {})[row["seed"]] = float(row["loss"])
    lines = []
    for name in ORDER:
        for size in sorted(size for model, size in losses if model == name):
            mine = [row for row in rows if (row["contender"], size_of(row)) == (name, size)]
            loss = Mean.of(list(losses[name, size].values()))
            flat = {} if name == "flat-tied" else losses.get(("flat-tied", size), {})
            gap = paired(losses[name, size], flat)
            bits = Mean.of([float(row["bits_per_byte"]) for row in mine])
            graded = [row for row in mine if row.get("grammar") and row.get("judge", "") == judge]
            ours = [Mean.of([float(row[score]) for row in graded]) for score in SCORES] if graded else []
            lines.append([
                MODELS[name].title, str(size), f"{int(mine[0]['parameters']):,}", str(loss.n), loss.show(3),
                "" if gap is None else gap.show(3, "+"), bits.show(3),
                ", ".join(f"{score:g}" for score in PAPER.get((name, size), ())) or "not in the paper",
                ", ".join(f"{score.value:.2f}" for score in ours) or "no judge",
            ])  # fmt: skip
    head = ["model", "hidden", "parameters", "n", "validation loss", "less GPT-2's", "bits per byte"]
    return table([*head, "the paper's scores", "ours"], lines)


def flags_of(rows: Sequence[Row]) -> dict[str, Sequence[object]]:
    """The flags of `table1_quality` that train what rows with the same settings hold."""
    values = values_of(shared_settings(rows[0]))
    if values.get("--num-layers") != ["8"]:
        return {"--quick": ()}
    return {
        "--data": values["--data"],
        "--hidden-sizes": sorted({size_of(row) for row in rows}),
        "--seeds": sorted({int(row["seed"]) for row in rows}),
        "--steps": values["--max-steps"],
        **{flag: values[flag] for flag in ("--batch-size", "--lr", "--eval-tokens") if flag in values},
    }


def size_of(row: Row) -> int:
    """The hidden size that a row's settings name."""
    words = row["settings"].split()
    return int(words[words.index("--hidden-size") + 1])


def shared_settings(row: Row) -> str:
    """A row's settings without the hidden size: what all rows of a table have in common."""
    words = row["settings"].split()
    place = words.index("--hidden-size")
    return " ".join(words[:place] + words[place + 2 :])
