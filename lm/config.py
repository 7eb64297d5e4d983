"""The settings of `train_lm`, `eval_lm`, `sample_lm`, `judge_lm`. Imports no torch: `--help` is instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import tyro

from sqrtvocab.flags import Device, Flags, Precision, Schedule, as_text, at_least, positive, seed_fits
from sqrtvocab.heads.registry import HEADS
from sqrtvocab.settings import HeadFlags, HeadName, MachineFlags, PresetFlag, RunFlags, StepFlags

SERVED_JUDGE = "gpt-4o-mini"


@dataclass(frozen=True)
class _HeadFlags(HeadFlags):
    head: HeadName = "grouped-linear"
    grouping: Literal["frequency", "index", "random", "clusters", "discovered"] = "frequency"
    """Which tokens share a group: those of similar frequency in the training text, consecutive ids (the
    paper's), any, or those with similar --embeddings (clusters); with discovered, members of one number are
    alike in all groups, too, for --head grouped. A head without groups uses it only to report group
    accuracy."""
    prior: bool = True
    embeddings: Path | None = None
    """For --grouping clusters and discovered: a run of train_lm with the same tokenizer, whose token
    embedding is clustered (k-means, balanced to the group size). Needed only to begin."""
    tie_embeddings: bool = False
    """Let the head share the input embedding's weight (flat and grouped-linear); GPT-2 itself does."""
    adapter: bool = False
    """With --tie-embeddings: a hidden-size x hidden-size layer between the backbone and the head, which at a
    low learning rate gives back most of what tying loses."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.head not in HEADS:
            return problems
        # The head's class is asked only where it matters, for that imports torch.
        if self.tie_embeddings and not HEADS[self.head].takes("weight"):
            problems.append(f"--tie-embeddings: --head {self.head} has no weight of the embedding's shape")
        if self.num_groups is not None and HEADS[self.head].frequent_first:
            problems.append(f"--num-groups: --head {self.head} has no groups of this kind")
        if self.grouping not in ("frequency", "index") and HEADS[self.head].frequent_first:
            problems.append(
                f"--grouping {self.grouping}: --head {self.head} needs frequent tokens first; "
                "take frequency, or index for a tokenizer whose ids are sorted so"
            )
        if self.adapter and not self.tie_embeddings:
            problems.append("--adapter is for --tie-embeddings: weights of the head's own contain one")
        by_embeddings = self.grouping in ("clusters", "discovered")
        if by_embeddings and self.embeddings is None:
            problems.append(
                f"--grouping {self.grouping} needs --embeddings, a run of train_lm to take them from"
            )
        if not by_embeddings and self.embeddings is not None:
            problems.append(f"--embeddings is for --grouping clusters or discovered, not {self.grouping}")
        return problems


@dataclass(frozen=True)
class _TextFlags(Flags):
    SECTION: ClassVar[str] = "data"

    data: str = "auto"
    """auto: TinyStories if it is cached or reachable, else built-in stories. tinystories: download it.
    stories or stories:N: built-in. Or a file or folder of .txt (with <|endoftext|> between stories), .jsonl
    or .parquet."""
    valid_fraction: float = 0.01
    """Share of the documents kept for validation, where no file is named so."""
    text_column: str = "text"
    """The field of .jsonl and .parquet files that holds the text."""
    tokenizer: str = "gpt2"
    """gpt2 (50,257 tokens); train:N, a byte-level BPE of N tokens learnt from the data; or the path of a
    tokenizer.json or its folder."""
    vocab: Literal["whole", "occurring"] = "whole"
    """occurring: leave out the tokens that do not occur in the training text, but for the parts that others
    are merged from. Text that has them falls into smaller tokens, at worst into bytes."""
    cache: Path | None = None
    """Folder for tokenised text; $SQRTVOCAB_CACHE or ~/.cache/sqrtvocab by default."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if not 0 < self.valid_fraction < 1:
            problems.append(f"--valid-fraction must lie between 0 and 1, got {self.valid_fraction}")
        return problems


@dataclass(frozen=True)
class _BackboneFlags(Flags):
    SECTION: ClassVar[str] = "model"

    backbone: Literal["gpt2", "gpt-neo", "llama"] = "gpt2"
    """The transformer below the head."""
    hidden_size: int = 128
    """Width of the hidden state."""
    num_layers: int = 8
    """Transformer blocks."""
    num_attention_heads: int = 8
    """Attention heads of a block."""
    seq_len: int = 512
    """Tokens of one sequence."""
    dropout: float = 0.0
    """Dropout everywhere in the backbone (gpt2 and gpt-neo). One epoch needs none."""

    def problems(self) -> list[str]:
        problems = super().problems()
        problems += at_least(self, 1, "hidden_size", "num_layers", "num_attention_heads", "seq_len")
        if not 0 <= self.dropout < 1:
            problems.append(f"--dropout must be at least 0 and less than 1, got {self.dropout}")
        if self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads:
            problems.append(
                f"--hidden-size {self.hidden_size} must be divisible by --num-attention-heads "
                f"{self.num_attention_heads}"
            )
        elif self.backbone == "llama" and self.hidden_size // max(1, self.num_attention_heads) % 2:
            problems.append("--hidden-size / --num-attention-heads must be even for --backbone llama")
        if self.backbone == "llama" and self.dropout:
            problems.append("--dropout: --backbone llama has none")
        return problems


@dataclass(frozen=True)
class _StepFlags(StepFlags):
    lr: float = 8e-3  # the best of four for flat and for grouped-linear alike: docs/results/heads_lm.md
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 0.1
    """Decay of the backbone's matrices."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 0, "weight_decay")
        if self.optimizer == "sgd" and self.lr * self.weight_decay > 0.01:
            problems.append(
                f"--weight-decay {self.weight_decay:g}: with --optimizer sgd --lr {self.lr:g} a step would "
                f"take {self.lr * self.weight_decay:.0%} of a matrix away; try --weight-decay 0"
            )
        return problems


@dataclass(frozen=True)
class _MachineFlags(MachineFlags):
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass instead of keeping them: slower, less memory."""


@dataclass(frozen=True)
class _RunFlags(RunFlags):
    eval_tokens: int = 65_536
    """Validation tokens of each evaluation, the same ones every time; 0 takes them all."""
    sample_every: int = 500
    """Write stories to TensorBoard every so many steps, and at the end; 0 never does."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 0, "eval_tokens", "sample_every")


@dataclass(frozen=True)
class TrainConfig(_RunFlags, _MachineFlags, _StepFlags, _BackboneFlags, _TextFlags, _HeadFlags, PresetFlag):
    """Train a language model on short stories, with any output head, and watch it in TensorBoard.

    The shape is the paper's smallest (hidden 128, 8 layers, one epoch) with the best head known; the presets
    paper-* are the paper's own. `--preset quickstart` takes about a minute on two CPU cores. Several GPUs or
    machines: `torchrun --nproc-per-node 2 -m lm.train ...`
    """

    PROGRAM: ClassVar[str] = "train_lm"
    EXAMPLES = (
        ("train_lm --preset quickstart", "a minute on two cores"),
        ("train_lm --data my.txt --tokenizer train:8000", "your own text"),
        ("train_lm --resume runs/NAME --lr 0.002", "go on, more slowly"),
    )
    MODULE: ClassVar[str] = "lm.train"
    ADDED_LATER: ClassVar[dict[str, Any]] = {
        "embeddings": None, "modulation": None, "rank": None, "chunk_size": None, "samples": None,
        "hashes": None, "buckets": None, "adapter": False, "optimizer": "adam",
        "vocab": "whole", "vocab_parallel": False,
    }  # fmt: skip

    preset: Literal[
        "default", "fast", "paper-128", "paper-256", "paper-512", "ablation", "quickstart"
    ] = "default"  # fmt: skip

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.rank is not None and self.rank > self.hidden_size:
            problems.append(f"--rank {self.rank} must be at most --hidden-size {self.hidden_size}")
        return problems

    @property
    def run_name(self) -> str:
        return f"lm-{self.backbone}-{self.hidden_size}-{self.head}"


@dataclass(frozen=True)
class EvalConfig(Flags):
    """Score a trained language model: loss, perplexity, bits per byte, accuracy, variety of its stories."""

    EXAMPLES = (
        ("eval_lm runs/NAME", "the whole validation text"),
        ("eval_lm runs/NAME --tokens 100000 --samples 0", "a quick look"),
        ("eval_lm runs/NAME --data other.txt", "another text"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("data", "tokens", "cache"),
        "machine": ("device", "precision", "batch_size"),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_lm."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    data: str | None = None
    """Other text to score it on (its validation part); by default the text it was trained on."""
    tokens: int = 0
    """How many validation tokens; 0 takes them all."""
    samples: int = 20
    """Stories to write for distinct-n and repetition; 0 leaves them out."""
    max_tokens: int = 200
    """Longest story, in tokens."""
    batch_size: int = 16
    """Sequences at a time."""
    cache: Path | None = None
    """Folder for tokenised text; $SQRTVOCAB_CACHE or ~/.cache/sqrtvocab by default."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    seed: int = 0
    """Decides the stories written."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "max_tokens", "batch_size")
        problems += at_least(self, 0, "tokens", "samples", "seed") + seed_fits(self)
        return problems


@dataclass(frozen=True)
class SampleConfig(Flags):
    """Let a trained language model tell a story, word by word."""

    EXAMPLES = (
        ("sample_lm runs/NAME", "a story"),
        ("sample_lm runs/NAME --prompt Tom --count 3", "three about Tom"),
        ("sample_lm runs/NAME --temperature 0", "the most probable one"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint"),
        "data": ("prompt",),
        "machine": ("device",),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_lm."""
    prompt: str = "Once upon a time"
    """How the story begins."""
    count: int = 1
    """How many stories."""
    max_tokens: int = 400
    """Longest story, in tokens; the sequence length of training is the limit."""
    temperature: float = 0.8
    """0 always takes the most probable token; 1 samples as the model predicts."""
    top_k: int = 50
    """Sample from this many most probable tokens only; 0 is all."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    seed: int | None = None
    """Makes the story repeatable; by default each call tells another."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "count", "max_tokens")
        problems += at_least(self, 0, "temperature", "top_k", "seed") + seed_fits(self)
        try:
            as_text(self.prompt)
        except UnicodeDecodeError as error:
            problems.append(f"--prompt is not UTF-8 at byte {error.start:,}")
        return problems


@dataclass(frozen=True)
class JudgeConfig(Flags):
    """Have another language model grade a trained one's stories: grammar, creativity, consistency, plot, age.

    Any server that speaks the OpenAI chat protocol will do: OPENAI_BASE_URL and OPENAI_API_KEY say which. Or
    --judge FOLDER: a model at hand, without a server.
    """

    EXAMPLES = (
        ("judge_lm runs/NAME", "twenty stories"),
        ("judge_lm runs/NAME --model NAME --completions 5", "more, by another judge"),
        ("judge_lm runs/NAME --judge FOLDER", "by a model on this machine"),
        ("judge_lm runs/NAME --prompts openings.txt", "your own openings"),
    )
    SECTIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("run", "checkpoint", "judge", "model"),
        "data": ("prompts",),
        "machine": ("device", "concurrency", "timeout"),
    }

    run: tyro.conf.Positional[Path]
    """Run folder of train_lm."""
    judge: Path | None = None
    """A folder with a causal model of transformers and its tokenizer, such as one made by save_pretrained: it
    judges, one story at a time, and no server is asked."""
    model: str = SERVED_JUDGE
    """The judge's name on its server."""
    prompts: Path | None = None
    """A file with one story opening on each line; by default a built-in set of twenty."""
    completions: int = 1
    """Stories for each opening."""
    max_tokens: int = 200
    """Longest story, in tokens."""
    temperature: float = 0.8
    """Of our model's sampling."""
    concurrency: int = 4
    """Stories judged at the same time."""
    timeout: float = 60.0
    """Seconds to wait for an answer of the server."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    out: Path | None = None
    """File for stories and raw answers; RUN/judge.jsonl by default. If it exists, judging is resumed. The
    scores go beside it, into a file of the same name that ends in .json."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    seed: int = 0
    """Decides the stories."""

    def problems(self) -> list[str]:
        problems = super().problems() + at_least(self, 1, "completions", "max_tokens", "concurrency")
        problems += at_least(self, 0, "temperature", "seed") + positive(self, "timeout") + seed_fits(self)
        if self.judge is not None and not self.judge.is_dir():
            problems.append(f"--judge {self.judge}: no such folder")
        if self.judge is not None and self.model != SERVED_JUDGE:
            problems.append("--model is a judge on a server, --judge one in a folder: drop one of them")
        if self.prompts is not None and not self.prompts.is_file():
            problems.append(f"--prompts {self.prompts}: no such file")
        if self.out is not None and self.out.suffix.lower() == ".json":
            problems.append(
                f"--out {self.out}: the scores go there; name the raw answers {self.out.stem}.jsonl"
            )
        return problems

    @property
    def judge_name(self) -> str:
        """What the judge is called in the journal: it tells whose answers these are."""
        return self.model if self.judge is None else str(self.judge.resolve())
