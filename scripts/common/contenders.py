"""The heads to be compared, as flags of the trainers, and what to say about them."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.common.jobs import Contender
from scripts.common.lm_models import Shape
from sqrtvocab.heads.registry import HEADS

# Cheap ones first. Every flag is spelled out: a row must keep its meaning when a default changes.
LM = {
    "grouped-linear": Contender(
        "grouped-linear, frequency, prior",
        "--head grouped-linear --no-tie-embeddings --grouping frequency --prior",
    ),
    "grouped": Contender(
        "grouped, index, no prior (the paper's)",
        "--head grouped --modulation scale-shift --no-tie-embeddings --grouping index --no-prior",
    ),
    "grouped-prior": Contender(
        "grouped, frequency, prior",
        "--head grouped --modulation scale-shift --no-tie-embeddings --grouping frequency --prior",
    ),
    "grouped-film": Contender(
        "grouped film, frequency, prior",
        "--head grouped --modulation film --no-tie-embeddings --grouping frequency --prior",
    ),
    "grouped-both": Contender(
        "grouped both, frequency, prior",
        "--head grouped --modulation both --no-tie-embeddings --grouping frequency --prior",
    ),
    "grouped-low-rank": Contender(
        "grouped-low-rank, rank 16, frequency, prior",
        "--head grouped-low-rank --rank 16 --no-tie-embeddings --grouping frequency --prior",
    ),
    "grouped-linear-tied": Contender(
        "grouped-linear tied, frequency, prior",
        "--head grouped-linear --tie-embeddings --grouping frequency --prior",
    ),
    "grouped-linear-adapter": Contender(
        "grouped-linear tied through an adapter, frequency, prior",
        "--head grouped-linear --tie-embeddings --adapter --grouping frequency --prior",
    ),
    "grouped-linear-no-prior": Contender(
        "grouped-linear, frequency, no prior",
        "--head grouped-linear --no-tie-embeddings --grouping frequency --no-prior",
    ),
    "grouped-linear-index": Contender(
        "grouped-linear, index, prior",
        "--head grouped-linear --no-tie-embeddings --grouping index --prior",
    ),
    "grouped-linear-random": Contender(
        "grouped-linear, random, prior",
        "--head grouped-linear --no-tie-embeddings --grouping random --prior",
    ),
    "grouped-linear-clusters": Contender(
        "grouped-linear, clusters, prior",
        "--head grouped-linear --no-tie-embeddings --grouping clusters --prior",
        embeddings_of="grouped-linear",
    ),
    "adaptive": Contender(
        "adaptive, frequency, prior",
        "--head adaptive --no-tie-embeddings --grouping frequency --prior",
        cost=2,
    ),
    "sampled": Contender(
        "sampled, 8,192 drawn, prior",
        "--head sampled --samples 8192 --no-tie-embeddings --grouping frequency --prior",
        cost=2,
    ),
    "flat-chunked": Contender(  # 51 MB of logits at a time
        "flat chunked, prior",
        "--head flat --chunk-size 256 --no-tie-embeddings --grouping frequency --prior",
        cost=3,
    ),
    "flat-chunked-tied": Contender(
        "flat chunked tied, prior",
        "--head flat --chunk-size 256 --tie-embeddings --grouping frequency --prior",
        cost=3,
    ),
    "flat-tied": Contender(
        "flat tied, no prior (GPT-2's own)",
        "--head flat --tie-embeddings --grouping frequency --no-prior",
        cost=4,
    ),
    "flat": Contender("flat, prior", "--head flat --no-tie-embeddings --grouping frequency --prior", cost=4),
}

IMAGES = {
    "factored": Contender(
        "factored: a softmax for each attribute", "--head factored --grouping aligned --no-prior"
    ),
    "grouped": Contender(
        "grouped, aligned", "--head grouped --modulation scale-shift --grouping aligned --no-prior"
    ),
    "grouped-index": Contender(
        "grouped, index (the paper's)", "--head grouped --modulation scale-shift --grouping index --no-prior"
    ),
    "grouped-random": Contender(
        "grouped, random", "--head grouped --modulation scale-shift --grouping random --no-prior"
    ),
    "grouped-film": Contender(
        "grouped film, aligned", "--head grouped --modulation film --grouping aligned --no-prior"
    ),
    "grouped-both": Contender(
        "grouped both, aligned", "--head grouped --modulation both --grouping aligned --no-prior"
    ),
    "grouped-low-rank": Contender(
        "grouped-low-rank, rank 16, aligned",
        "--head grouped-low-rank --rank 16 --grouping aligned --no-prior",
    ),
    "adaptive": Contender("adaptive, by index", "--head adaptive --grouping aligned --no-prior", cost=1.5),
    "grouped-linear": Contender(
        "grouped-linear, aligned", "--head grouped-linear --grouping aligned --no-prior", cost=2
    ),
    "flat-chunked": Contender(  # 12 MB of logits at a time
        "flat chunked", "--head flat --chunk-size 16 --grouping aligned --no-prior", cost=3
    ),
    "flat": Contender("flat", "--head flat --grouping aligned --no-prior", cost=3),
}

# Settings that no flag of a comparison changes, spelled out for the same reason.
IMAGES_RECIPE = (
    "--schedule cosine --warmup-steps 0 --rotation-cue notch --images-per-class 10 --precision fp32"
)


def lm_recipe(lr: float = 1e-3, tokenizer: str = "gpt2", optimizer: str = "adam") -> str:
    """The same for text. A head that loses at one learning rate may only want another: that is a choice."""
    rest = "--schedule cosine --weight-decay 0.1 --precision fp32"
    if optimizer == "sgd":  # whose rates are so high that this decay would take the weights away
        rest = "--optimizer sgd --schedule cosine --weight-decay 0 --precision fp32"
    return f"--tokenizer {tokenizer} --dropout 0.0 --lr {lr:g} {rest}"


def lm_settings(shape: Shape, steps: int, warmup_steps: int, eval_tokens: int) -> str:
    """The flags of `train_lm` for the size of the model, of a step and of the run.

    The steps are the limit, not the epochs. One evaluation, no stories: they are no part of a training.
    """
    return (
        f"--hidden-size {shape.hidden_size} --num-layers {shape.num_layers} "
        f"--num-attention-heads {shape.num_attention_heads} --seq-len {shape.seq_len} "
        f"--batch-size {shape.batch_size} --max-steps {steps} --epochs 1000 --warmup-steps {warmup_steps} "
        f"--eval-every {steps} --eval-tokens {eval_tokens} --sample-every 0"
    )


@dataclass(frozen=True)
class Comparison:
    """What the two experiments differ in."""

    name: str
    trainer: str  # the module
    program: str  # the command that is the same
    item: str
    title: str
    listed: dict[str, Contender]  # trained unless others are named
    quick: tuple[str, ...]  # the contenders of --quick
    columns: dict[str, str]  # column of the record -> heading: what a table shows beside the loss
    reference: str  # the flat head that the table compares all others with
    like: dict[str, str]  # contender -> the flat head to compare it with, like for like
    same: dict[str, str]  # a flat head -> another form of it with the same loss, if that was trained instead
    several_rates: bool  # whether the learning rate is one of the flags
    notes: tuple[str, ...]

    @property
    def contenders(self) -> dict[str, Contender]:
        """All that can be named: those listed, and any other registered head as the trainer makes it."""
        others = {name: Contender(name, f"--head {name}") for name in HEADS if name not in self.listed}
        return {**self.listed, **others}


MEMORY_NOTE = "Peak memory is that of the whole process, Python and its libraries included."

COMPARISONS = {
    "lm": Comparison(
        name="lm",
        trainer="lm.train",
        program="train_lm",
        item="token",
        title="Heads compared on text",
        listed=LM,
        quick=(
            "grouped-linear", "grouped", "grouped-film", "grouped-linear-tied", "grouped-linear-clusters",
            "adaptive", "flat-chunked", "flat",
        ),
        columns={"bits_per_byte": "bits per byte", "accuracy": "token accuracy"},
        reference="flat-chunked",
        like={
            "grouped-linear": "flat-chunked",
            "grouped-low-rank": "flat-chunked",
            "adaptive": "flat-chunked",
            "grouped-linear-tied": "flat-chunked-tied",
        },
        same={"flat-chunked": "flat"},
        several_rates=True,
        notes=(
            "*flat-chunked* is the exact loss of *flat*, a part of the tokens at a time: equal up to "
            "rounding, in a fraction of the memory, so it is the one to compare with.",
            "*clusters*: groups of similar token embeddings, taken from the run of `grouped-linear` with the "
            "same seed. The seconds of that run are not counted; the peak memory includes the clustering.",
            "*adaptive* has a structure of its own and needs classes sorted by frequency.",
            "The head's parameters are those it adds: a tied one shares the embedding's.",
            MEMORY_NOTE,
        ),
    ),
    "images": Comparison(
        name="images",
        trainer="classifier.train",
        program="train_classifier",
        item="image",
        title="Heads compared on images",
        listed=IMAGES,
        quick=("factored", "grouped", "grouped-index", "grouped-film", "adaptive", "flat-chunked", "flat"),
        columns={"accuracy": "accuracy", "group_accuracy": "group accuracy"},
        reference="flat",
        like={},
        same={},
        several_rates=False,
        notes=(
            "No prior: all classes are equally frequent, so it would change nothing.",
            "*factored* is told the whole structure of the label, which the others are not (*aligned* groups "
            "follow a part of it): a bound, not a rival.",
            "Group accuracy is that of the aligned groups, except for *index* and *random*, which have their "
            "own; of a head without groups it is the group of its most probable class.",
            MEMORY_NOTE,
        ),
    ),
}  # fmt: skip
