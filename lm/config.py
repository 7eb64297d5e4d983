"""The settings of `train_lm`, `eval_lm`, `sample_lm`, `judge_lm`. Imports no torch: `--help` is instant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from sqrtvocab.errors import UserError
from sqrtvocab.flags import at_least, positive, seed_fits

Device = Literal["auto", "cuda", "mps", "cpu"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]

# Settings that older runs lack -> what they were then.
YOUNGER = {"embeddings": None, "modulation": None, "rank": None, "chunk_size": None, "adapter": False}


@dataclass(frozen=True)
class TrainConfig:
    """Train a language model on short stories, with any output head, and watch it in TensorBoard.

    The shape is the paper's smallest (hidden 128, 8 layers, one epoch) with the best head known; the presets
    paper-* are the paper's own. `--preset quickstart` takes about a minute on two CPU cores. Several GPUs or
    machines: `torchrun --nproc-per-node 2 -m lm.train ...`
    """

    preset: Literal["default", "paper-128", "paper-256", "paper-512", "ablation", "quickstart"] = "default"
    """Where the defaults of all other flags come from; flags given besides it win."""

    head: Literal["grouped-linear", "grouped-low-rank", "grouped", "flat", "adaptive"] = "grouped-linear"
    """Output head: one linear layer for each group, a mixture of a few that all groups share, the paper's
    single shared one with scale and shift, the ordinary one, adaptive softmax."""
    grouping: Literal["frequency", "index", "random", "clusters"] = "frequency"
    """Which tokens share a group: those of similar frequency in the training text, consecutive ids (the
    paper's), any, or those with similar --embeddings. The flat head uses it only to report group accuracy."""
    embeddings: Path | None = None
    """For --grouping clusters: a run of train_lm with the same tokenizer, whose token embedding is clustered
    (k-means, balanced to the group size). Needed only to begin."""
    num_groups: int | None = None
    """Number of groups; floor(√V) by default."""
    modulation: Literal["scale-shift", "film", "both"] | None = None
    """How a group makes the shared layer of --head grouped its own: scale and shift after it (the paper's,
    and the default), before it (film), or both."""
    rank: int | None = None
    """How many layers the groups of --head grouped-low-rank share; 16 by default."""
    chunk_size: int | None = None
    """Let --head flat work on so many tokens at a time: the same loss, exactly, in less memory."""
    prior: bool = True
    """Start the head's biases at the log frequencies of the training tokens."""
    tie_embeddings: bool = False
    """Let the head share the input embedding's weight (flat and grouped-linear); GPT-2 itself does."""
    adapter: bool = False
    """With --tie-embeddings: a hidden-size x hidden-size layer between the backbone and the head, which at a
    low learning rate gives back most of what tying loses."""

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
    cache: Path | None = None
    """Folder for tokenised text; $SQRTVOCAB_CACHE or ~/.cache/sqrtvocab by default."""

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

    epochs: float = 1.0
    """Times through the training text."""
    max_steps: int | None = None
    """Stop after this many optimiser steps."""
    max_minutes: float | None = None
    """Stop this call after so many minutes: finish the step, evaluate, save."""
    batch_size: int = 32
    """Sequences of one micro-batch on one device."""
    accumulate: int = 1
    """Micro-batches whose gradients are added up in one step. A step sees batch-size x accumulate x ranks
    sequences."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: falling to zero along a cosine, or constant."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.1
    """Decay of the backbone's matrices."""

    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    precision: Precision = "auto"
    """Number format of the forward pass; auto chooses for the device and says why."""
    compile: bool = False
    """Compile the model with torch.compile (worth it on a GPU; takes a minute at the start)."""
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass instead of keeping them: slower, less memory."""

    eval_every: int = 500
    """Evaluate and save every so many steps; also at the end."""
    eval_tokens: int = 65_536
    """Validation tokens of each evaluation, the same ones every time; 0 takes them all."""
    sample_every: int = 500
    """Write stories to TensorBoard every so many steps, and at the end; 0 never does."""
    out: Path | None = None
    """Run folder; runs/lm-<backbone>-<hidden size>-<head> by default. TensorBoard overlays the runs of one
    parent."""
    resume: str | None = None
    """auto: continue the run in --out if it has begun, else begin. A path: continue the run in that folder,
    with its settings unless other flags are given."""
    seed: int = 0
    """Decides the order of the text and the initial weights."""

    def __post_init__(self) -> None:
        problems = at_least(
            self, 1, "hidden_size", "num_layers", "num_attention_heads", "seq_len", "batch_size",
            "accumulate", "eval_every", "num_groups", "max_steps", "chunk_size", "rank",
        )  # fmt: skip
        problems += at_least(self, 0, "warmup_steps", "eval_tokens", "sample_every", "seed", "weight_decay")
        problems += seed_fits(self)
        problems += positive(self, "lr", "max_minutes", "epochs")
        if not 0 < self.valid_fraction < 1:
            problems.append(f"--valid-fraction must lie between 0 and 1, got {self.valid_fraction}")
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
        if self.tie_embeddings and self.head in ("grouped", "grouped-low-rank", "adaptive"):
            problems.append(f"--tie-embeddings: --head {self.head} has no weight of the embedding's shape")
        if self.adapter and not self.tie_embeddings:
            problems.append("--adapter is for --tie-embeddings: weights of the head's own contain one")
        if self.num_groups is not None and self.head == "adaptive":
            problems.append("--num-groups: --head adaptive has clusters, not groups")
        if self.head == "adaptive" and self.grouping in ("random", "clusters"):
            problems.append(
                f"--grouping {self.grouping}: --head adaptive needs frequent tokens first; take frequency, "
                "or index for a tokenizer whose ids are sorted so"
            )
        if self.modulation is not None and self.head != "grouped":
            problems.append(f"--modulation is for --head grouped, not {self.head}")
        if self.rank is not None and self.head != "grouped-low-rank":
            problems.append(f"--rank is for --head grouped-low-rank, not {self.head}")
        elif self.rank is not None and self.rank > self.hidden_size:
            problems.append(f"--rank {self.rank} must be at most --hidden-size {self.hidden_size}")
        if self.chunk_size is not None and self.head != "flat":
            problems.append(f"--chunk-size is for --head flat, not {self.head}")
        if self.grouping == "clusters" and self.embeddings is None:
            problems.append("--grouping clusters needs --embeddings, a run of train_lm to take them from")
        if self.grouping != "clusters" and self.embeddings is not None:
            problems.append(f"--embeddings is for --grouping clusters, not {self.grouping}")
        if self.resume not in (None, "auto") and self.out is not None and Path(str(self.resume)) != self.out:
            problems.append("--resume PATH continues the run in that folder: leave --out away")
        if problems:
            raise UserError("; ".join(problems))

    @property
    def run_folder(self) -> Path:
        """The folder that holds everything about this run."""
        if self.resume not in (None, "auto"):
            return Path(str(self.resume))
        return self.out or Path("runs") / f"lm-{self.backbone}-{self.hidden_size}-{self.head}"

    @classmethod
    def from_json(cls, settings: dict[str, Any], **changes: Any) -> TrainConfig:
        """The inverse of `to_json`; further keys in `settings` are ignored.

        Raises:
            UserError: for settings that were not written by `to_json`.
        """
        try:
            settings = {**YOUNGER, **settings}
            values = {field.name: settings[field.name] for field in dataclasses.fields(cls)}
        except KeyError as error:
            raise UserError(f"the setting {error} is missing") from error
        kinds = get_type_hints(cls)
        if wrong := [name for name, value in values.items() if not _fits(value, kinds[name])]:
            raise UserError("; ".join(f"the setting '{name}' cannot be {values[name]!r}" for name in wrong))
        for name in ("cache", "embeddings", "out"):
            values[name] = None if values[name] is None else Path(values[name])
        return cls(**{**values, **changes})

    def to_json(self) -> dict[str, Any]:
        """All settings as plain JSON values."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in vars(self).items()}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is one of a field's type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_args(kind):  # X | None
        return any(_fits(value, one) for one in get_args(kind))
    kinds: Any = {float: (int, float), Path: str}.get(kind, kind)
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


@dataclass(frozen=True)
class EvalConfig:
    """Score a trained language model: loss, perplexity, bits per byte, accuracy, and how varied it writes."""

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

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "max_tokens", "batch_size")
        problems += at_least(self, 0, "tokens", "samples", "seed") + seed_fits(self)
        if problems:
            raise UserError("; ".join(problems))


@dataclass(frozen=True)
class SampleConfig:
    """Let a trained language model tell a story, word by word."""

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

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "count", "max_tokens")
        problems += at_least(self, 0, "temperature", "top_k", "seed") + seed_fits(self)
        try:
            self.prompt.encode()
        except UnicodeEncodeError as error:  # how Python hands over bytes that are no UTF-8
            problems.append(f"--prompt is not UTF-8 at character {error.start:,}")
        if problems:
            raise UserError("; ".join(problems))


@dataclass(frozen=True)
class JudgeConfig:
    """Have another language model grade a trained one's stories: grammar, creativity, consistency, plot, age.

    Any server that speaks the OpenAI chat protocol will do: OPENAI_BASE_URL and OPENAI_API_KEY say which.
    """

    run: tyro.conf.Positional[Path]
    """Run folder of train_lm."""
    model: str = "gpt-4o-mini"
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
    """Seconds to wait for an answer."""
    checkpoint: Literal["best", "last"] = "best"
    """Weights that scored best in validation, or the newest."""
    out: Path | None = None
    """File for stories and raw answers; RUN/judge.jsonl by default. If it exists, judging is resumed. The
    scores go beside it, into a file of the same name that ends in .json."""
    device: Device = "auto"
    """auto takes cuda before mps before cpu."""
    seed: int = 0
    """Decides the stories."""

    def __post_init__(self) -> None:
        problems = at_least(self, 1, "completions", "max_tokens", "concurrency")
        problems += at_least(self, 0, "temperature", "seed") + positive(self, "timeout") + seed_fits(self)
        if self.prompts is not None and not self.prompts.is_file():
            problems.append(f"--prompts {self.prompts}: no such file")
        if self.out is not None and self.out.suffix.lower() == ".json":
            problems.append(
                f"--out {self.out}: the scores go there; name the raw answers {self.out.stem}.jsonl"
            )
        if problems:
            raise UserError("; ".join(problems))
