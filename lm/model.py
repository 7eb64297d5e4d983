"""A causal language model of any `transformers` backbone with any of our heads, a citizen of `transformers`.

    backbone = GPT2Config(n_embd=128, n_layer=8, n_head=8)
    model = CompressedLM(CompressedLMConfig(text_config=backbone, head="grouped-linear"))
    model(input_ids, labels=input_ids).loss.backward()
    model.generate(input_ids, do_sample=True, top_k=40)
    model.save_pretrained("folder"); CompressedLM.from_pretrained("folder")

In training no V-wide tensor is built: the loss comes from the head. For decoding the logits are the exact
joint log-probabilities of the positions asked for. docs/huggingface.md shows it with
the trainers of the field.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache
from transformers.configuration_utils import SubConfigSpec
from transformers.generation.streamers import BaseStreamer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import ModelOutput, TransformersKwargs, logging

from lm.attention import unmasked
from lm.decode import Rules, decode
from lm.fused import FusedOutput, fused_outputs, requested
from lm.hub import AUTO_MAP, CODE, CODE_FILE
from sqrtvocab import HEADS, Head, Partition, make_head
from sqrtvocab.atomic import write_text
from sqrtvocab.heads import head_class

IGNORED = -100
EVAL_OUTPUTS = ("tokens", "logits", "loss")
logger = logging.get_logger(__name__)


class _OfBackbone:
    """A setting that is the backbone's, under the name that every tool looks for in a configuration."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        return self if config is None else getattr(config.text_config, self.name)

    def __set__(self, config: Any, value: object) -> None:
        setattr(config.text_config, self.name, value)


class CompressedLMConfig(PreTrainedConfig):
    """A backbone's configuration and the head's settings.

    Args:
        text_config: the backbone's `PreTrainedConfig`, or a dict with its `model_type`.
        head: name of the head, see `sqrtvocab.HEADS`.
        num_groups: G; floor(√V) by default.
        ordered: whether the classes have an order of their own (by frequency, say). The order itself is
            stored with the weights.
        head_options: further options of the head's class.
        tie_word_embeddings: let the head, if it can, use the input embedding's weight.
        adapter: a d x d layer between backbone and head, the identity at first. A token's vector as input
            need not be its vector as output: at a low learning rate it gives back most of what tying loses.
        eval_output: what comes with the loss when a model in evaluation mode is given labels, and what the
            `compute_metrics` and `predict()` of a `Trainer` get: "tokens", the most probable token after each
            position; "logits", all V log-probabilities; "loss", nothing.
    """

    model_type = "compressed_lm"
    # What a `Trainer` must not take for predictions.
    keys_to_ignore_at_inference = ["past_key_values", "group_loss", "member_loss"]  # noqa: RUF012
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="gpt2")}  # noqa: RUF012

    text_config: PreTrainedConfig | dict | None = None
    head: str = "grouped-linear"
    num_groups: int | None = None
    ordered: bool = False
    head_options: dict | None = None
    tie_word_embeddings: bool = False
    adapter: bool = False
    eval_output: str = "tokens"

    vocab_size = _OfBackbone()
    hidden_size = _OfBackbone()
    num_hidden_layers = _OfBackbone()
    num_attention_heads = _OfBackbone()
    max_position_embeddings = _OfBackbone()
    bos_token_id = _OfBackbone()
    eos_token_id = _OfBackbone()
    pad_token_id = _OfBackbone()

    def __post_init__(self, **kwargs: Any) -> None:
        if self.eval_output not in EVAL_OUTPUTS:
            raise ValueError(
                f"eval_output must be one of {', '.join(EVAL_OUTPUTS)}; got {self.eval_output!r}"
            )
        if isinstance(self.text_config, PreTrainedConfig):
            # A copy, with its attention: the base class would reset that in a configuration that may belong
            # to a model at work, which from then on would attend without a causal mask.
            kwargs.setdefault("attn_implementation", self.text_config._attn_implementation)
            self.text_config = copy.deepcopy(self.text_config)
        super().__post_init__(**kwargs)
        self.auto_map = dict(AUTO_MAP)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in `transformers`, with the file that tells a process without `lm.model` where classes are."""
        super().save_pretrained(save_directory, *args, **kwargs)
        write_text(Path(save_directory) / CODE_FILE, CODE)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing: `transformers` would put a copy of this module, a second set of classes, into folders."""


@dataclass
class CompressedLMOutput(ModelOutput):
    """What `CompressedLM.forward` returns."""

    loss: Tensor | None = None
    """Negative log-likelihood of the labels: exactly what the flat softmax loss means."""
    group_loss: Tensor | None = None
    member_loss: Tensor | None = None
    logits: Tensor | None = None
    """[B, positions kept, V] log-probabilities, at least float32; with labels, if `eval_output` says so."""
    rows: Tensor | None = None
    """[B, positions kept, d] what the head makes the logits of; see `return_rows`."""
    predictions: Tensor | None = None
    """[B, L] the most probable token after each position; see `eval_output`."""
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class CompressedLM(PreTrainedModel, GenerationMixin):
    """A backbone and a head.

    Args:
        config: see `CompressedLMConfig`.
        backbone: use this one instead of a new one with random weights.
        order: [V] the class at each position of the partition, if `config.ordered`; when not given, it comes
            with the weights to be loaded.

    Raises:
        ValueError: settings of the head that do not fit.
    """

    config: CompressedLMConfig
    config_class = CompressedLMConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # tells a `Trainer` to say num_items_in_batch
    # What the backbone cannot do, it refuses itself.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(
        self, config: CompressedLMConfig, backbone: PreTrainedModel | None = None, order: Tensor | None = None
    ) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # tells a `Trainer` that the first label of a row is no target
        self.backbone = AutoModel.from_config(config.text_config) if backbone is None else backbone
        embedding = cast(nn.Parameter, self.backbone.get_input_embeddings().weight)
        self.head = _make_head(config, embedding, order)
        self.adapter = _identity(self.head.in_features) if config.adapter else None
        if config.tie_word_embeddings:
            name = next(name for name, weight in self.backbone.named_parameters() if weight is embedding)
            self._tied_weights_keys = {"head.weight": f"backbone.{name}"}
        self._backbone_takes = _keywords(self.backbone.forward)
        self._fused_outputs: tuple[str, ...] = ("log_probs",)
        self.post_init()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and (outputs := requested(value)) is not None:  # by TRL, see lm.fused
            self._fused_outputs = outputs
        else:
            super().__setattr__(name, value)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing, as for the configuration."""

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the head has initialised itself, and the backbone looks after itself."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers`, but a checkpoint that lacks weights is refused, not filled up at random.

        Raises:
            ValueError: naming the weights that the checkpoint lacks, or those of another shape.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        may_differ = kwargs.pop("ignore_mismatched_sizes", False)
        renamed = {
            rf"^head\.{re.escape(old)}$": f"head.{new}"
            for kind in HEADS.values()
            for old, new in kind.renamed.items()
        }
        kwargs["key_mapping"] = {**renamed, **(kwargs.get("key_mapping") or {})}
        model, info = cast(Any, super()).from_pretrained(
            *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
        )
        if (differing := sorted(info["mismatched_keys"])) and not may_differ:
            shapes = [f"{name} is {list(saved)}, not {list(made)}" for name, saved, made in differing]
            raise ValueError(f"the checkpoint does not fit the configuration: {'; '.join(shapes)}")
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"the checkpoint lacks weights of this model: {', '.join(missing)}")
        # The head was made on the meta device; moving it lets it choose the kernel for where it is now.
        model.head.to(model.head_device)
        return (model, info) if wants_info else model

    @property
    def head_device(self) -> torch.device:
        """Where the head computes."""
        return next(self.head.parameters()).device

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> None:
        """None: a head is more than a matrix, so `transformers` must not resize or tie it."""

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """As in `transformers`: more tokens for the input embedding and, see `sqrtvocab.Head.grow`, the head.

        Raises:
            NotImplementedError: a head that cannot grow, or fewer tokens than there are.
        """
        embedding = cast(nn.Embedding, self.get_input_embeddings())
        wanted = embedding.num_embeddings if new_num_tokens is None else new_num_tokens
        multiple = pad_to_multiple_of or 1
        wanted = -(-wanted // multiple) * multiple
        if wanted == embedding.num_embeddings:
            return embedding
        if not self.head.can_grow or wanted < embedding.num_embeddings:
            raise NotImplementedError(
                f"the {self.config.head} head has {embedding.num_embeddings:,} classes and cannot grow to "
                f"{wanted:,}: resize the model before `compress_vocab`, or build one with that vocab_size"
            )
        embedding = self.backbone.resize_token_embeddings(wanted, mean_resizing=mean_resizing)
        self.config.vocab_size = wanted
        shared = cast(nn.Parameter, embedding.weight) if self.config.tie_word_embeddings else None
        self.head = self.head.grow(wanted, shared)
        if (
            self.head.partition is not None
        ):  # it is no longer what the configuration would make of the numbers
            self.config.num_groups, self.config.ordered = self.head.partition.num_groups, True
        return embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_rows: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CompressedLMOutput | FusedOutput | tuple[Any, ...]:
        """The loss if labels are given, else the logits.

        Args:
            input_ids: [B, L].
            labels: [B, L], aligned with `input_ids`, as everywhere in `transformers`; −100 takes no part.
                In evaluation mode the output has what `config.eval_output` says, too.
            logits_to_keep: logits of the last so many positions, or of the positions listed; 0 is all.
            return_rows: instead of the logits, the rows [.., d] of which `self.head` makes them: for
                `head.topk` or `head.sample`, which need nothing V-wide. `generate` asks for it by itself.
            num_items_in_batch: what the summed loss is divided by, instead of the number of labels.
            return_dict: False gives the values that are not None as a plain tuple.
            shift_labels: [B, L], the target of each position, instead of `labels`.
            label_smoothing: see `sqrtvocab.Head.forward`.
            fused_lm_head: see `lm.fused`.
            kwargs: for the backbone.

        Raises:
            IndexError: a label outside the vocabulary.
            TypeError: an argument that neither this model nor its backbone has.
        """
        # Not in the signature: a `Trainer` takes every argument there whose name has "label" in it for one
        # that the data must bring.
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        label_smoothing: float = kwargs.pop("label_smoothing", 0.0)
        fused: bool = kwargs.pop("fused_lm_head", False)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        for name in kwargs:
            if name not in self._backbone_takes:
                raise TypeError(f"neither CompressedLM nor its {type(self.backbone).__name__} takes {name!r}")
        training = labels is not None or shift_labels is not None
        is_unpadded = training and attention_mask is None and position_ids is None and past_key_values is None
        with unmasked(self.backbone, is_unpadded=is_unpadded):
            outputs = self.backbone(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                inputs_embeds=inputs_embeds,
                use_cache=False if training and use_cache is None else use_cache,
                return_dict=True,
                **kwargs,
            )
        hidden = outputs.last_hidden_state  # [B, L, d]
        loss = group_loss = member_loss = logits = rows = predictions = None
        if not training:
            if (
                num_items_in_batch is not None
            ):  # a `Trainer` that smooths the labels, or has a loss of its own
                logger.warning_once(
                    "The labels were kept from the model, so all V logits of each token are built; for "
                    "label_smoothing_factor take lm.trainer.HeadTrainer, which needs none"
                )
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            rows = self.adapted(hidden[:, keep])
            if not return_rows:
                logits, rows = self.head.log_prob(rows), None
        else:
            if shift_labels is None:
                assert labels is not None
                # Shift the labels, not the hidden states: one position a row is ignored, nothing d-wide
                # copied.
                shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # [B, L]
            states = self.adapted(hidden)  # [B, L, d]
            if fused:
                return fused_outputs(
                    self.head, states, shift_labels, IGNORED, num_items_in_batch, self._fused_outputs
                )
            parts = self.head(
                states,
                shift_labels,
                ignore_index=IGNORED,
                reduction="mean" if num_items_in_batch is None else "sum",
                label_smoothing=label_smoothing,
            )
            divisor = 1 if num_items_in_batch is None else num_items_in_batch
            loss, group_loss, member_loss = (part / divisor for part in parts)
            if not self.training and self.config.eval_output == "tokens":
                predictions = self.head.predict(states)
            elif not self.training and self.config.eval_output == "logits":
                logits = self.head.log_prob(states)
        # All at once, for its values are in the order in which they are set.
        result = CompressedLMOutput(
            loss=loss,
            group_loss=group_loss,
            member_loss=member_loss,
            logits=logits,
            rows=rows,
            predictions=predictions,
            past_key_values=outputs.get("past_key_values"),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return result.to_tuple() if as_tuple else result

    def adapted(self, hidden: Tensor) -> Tensor:
        """[..., d] of the backbone -> [..., d] for the head."""
        return hidden if self.adapter is None else self.adapter(hidden)

    def _in_float32(self) -> bool:
        device = self.head_device.type
        weights = {parameter.dtype for parameter in self.head.parameters()}
        return weights == {torch.float32} and not torch.is_autocast_enabled(device)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers`, whatever the settings.

        Greedy decoding and sampling (temperature, top-k, top-p, min-p, a penalty for repetition) look at few
        tokens, and a head that finds these without a V-wide row is asked for no more; see `lm.decode`. Beams,
        processors of your own, scores to be returned and half precision, in which many logits are equal and
        those found would be an arbitrary choice of them, get all V logits. So does
        `custom_generate=GenerationMixin._sample`, which asks for the ordinary way.

        A backbone without a key-value cache (Mamba, say) reads the text again for every token: `generate`
        knows the caches of others by the names of their classes only.
        """
        if "past_key_values" not in inspect.signature(self.backbone.forward).parameters:
            kwargs["use_cache"] = False
        return cast(Any, super()).generate(*args, **kwargs)

    def _sample(  # not by `custom_generate`: a function given there gets neither streamer nor tokenizer
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """What `generate` calls for greedy decoding and sampling."""
        for name in ("tokenizer", "assistant_tokenizer"):  # of the stopping criteria; handed on for no reason
            model_kwargs.pop(name, None)
        config: Any = generation_config
        wants_more = config.output_scores or config.output_logits
        wants_more = wants_more or config.output_attentions or config.output_hidden_states
        rules = None
        if self.head.sparse_topk and self._in_float32() and not (wants_more or synced_gpus):
            rules = Rules.read(logits_processor, bool(config.do_sample))
        if rules is None or cast(Any, self)._valid_auto_compile_criteria(model_kwargs, config):
            return cast(Any, super())._sample(
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **model_kwargs,
            )
        return decode(self, input_ids, rules, stopping_criteria, config, streamer, model_kwargs)


AutoConfig.register(CompressedLMConfig.model_type, CompressedLMConfig)
AutoModelForCausalLM.register(CompressedLMConfig, CompressedLM)
# By this list, not by the registration, a `Trainer` that smooths labels tells that they have to be shifted.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CompressedLMConfig.model_type] = CompressedLM.__name__


def _keywords(forward: Callable[..., Any]) -> frozenset[str]:
    """The arguments of a backbone's forward, with those that `transformers` lets through its **kwargs."""
    parameters = inspect.signature(forward).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    passed_on = len(names) < len(parameters)
    return frozenset(names | set(TransformersKwargs.__annotations__) if passed_on else names)


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _make_head(config: CompressedLMConfig, embedding: nn.Parameter, order: Tensor | None) -> Head:
    kind = head_class(config.head)
    text_config = config.get_text_config()
    num_classes, features = text_config.vocab_size, text_config.hidden_size
    options = dict(config.head_options or {})
    if config.tie_word_embeddings:
        if not kind.takes("weight"):
            raise ValueError(f"tie_word_embeddings: the {config.head} head has no V x d weight to tie")
        if embedding.shape[1] != features:
            raise ValueError("tie_word_embeddings: the embedding is not as wide as the hidden state")
        options["weight"] = embedding
    if order is None and config.ordered:
        order = torch.arange(num_classes)  # a place for the order that comes with the weights
    offered = {"partition": Partition(num_classes, config.num_groups, order), "order": order}
    return make_head(config.head, features, num_classes, offered, **options)


def token_order(grouping: str, counts: Tensor | Sequence[float], seed: int = 0) -> Tensor | None:
    """The order of the classes for a grouping: "index" (None), "frequency" or "random"."""
    counts = torch.as_tensor(counts)
    if grouping == "frequency":
        return Partition.by_frequency(counts).order
    return Partition.random(len(counts), seed=seed).order if grouping == "random" else None
