"""What a model's folder holds beside its weights, so that others can use it: code, tokenizer, model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, processors

from lm.presets import PRESETS
from lm.text.tokenizer import TextTokenizer
from sqrtvocab.settings import command_line, public

# In a process that has not imported `lm.model`, `from_pretrained(folder, trust_remote_code=True)` runs this
# file. It names one package, the one to install: transformers looks for the imports of such a file first, and
# would advise to install a package "lm".
CODE_FILE = "compressed_lm.py"
CODE = '''\
"""Where `transformers` finds the classes of this model: in the package sqrtvocab, which must be installed."""

import importlib

import sqrtvocab  # noqa: F401

_model = importlib.import_module("lm.model")
CompressedLM, CompressedLMConfig = _model.CompressedLM, _model.CompressedLMConfig
'''
AUTO_MAP = {
    "AutoConfig": f"{CODE_FILE.removesuffix('.py')}.CompressedLMConfig",
    "AutoModelForCausalLM": f"{CODE_FILE.removesuffix('.py')}.CompressedLM",
}

_NOT_FOR_OTHERS = ("out", "resume", "cache", "device")  # flags of a card's command that say where, not what


def tokenizer_files(tokenizer: TextTokenizer, context: int) -> dict[str, object]:
    """The files of `AutoTokenizer`, by name. It begins each text with the end token, as training does.

    Args:
        context: the most tokens that the model looks at.
    """
    core = Tokenizer.from_str(tokenizer.core.to_str())
    end = core.id_to_token(tokenizer.end)
    core.post_processor = processors.TemplateProcessing(
        single=[end, "$A"], pair=[end, "$A", "$B"], special_tokens=[(end, tokenizer.end)]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    # As the text that it is: Python takes a quarter of a second to lay out 100,000 tokens and merges.
    return {"tokenizer.json": core.to_str(pretty=True) + "\n", "tokenizer_config.json": settings}


def model_card(settings: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The README.md of a model on the hub.

    Args:
        settings: of the run, its config.json.
        state: of the checkpoint.
    """
    scores = state.get("metrics") or {}
    table = [f"| {name} | {value:.4g} |" for name, value in scores.items()]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [sqrtvocab, compressed_lm]",
        "---",
        "",
        f"# {settings['backbone']}, hidden size {settings['hidden_size']}, head `{settings['head']}`",
        "",
        f"{settings['parameters']:,} parameters, {settings['vocab_size']:,} tokens, "
        f"{settings['groups']:,} groups. The output layer never builds the logits in training.",
        "",
        "```python",
        "from transformers import pipeline",
        "",
        'tell = pipeline("text-generation", FOLDER_OR_NAME, trust_remote_code=True)',
        'print(tell("Once upon a time")[0]["generated_text"])',
        "```",
        "",
        "The package `sqrtvocab` must be installed. `trust_remote_code=True` lets `compressed_lm.py` import "
        "it; `import lm.model` does the same.",
        "",
        "## Training",
        "",
        f"- data: {public(settings['data_used'])}, {settings['training_tokens']:,} tokens"
        + (f" ({settings['data_note']})" if settings.get("data_note") else ""),
        f"- steps: {state['step']:,} of {settings['total_steps']:,}, "
        f"{settings['sequences_per_step']} sequences of {settings['seq_len']} tokens each, "
        f"{state['minutes']:.1f} minutes on {settings['computed_on']}",
        f"- torch {settings['torch']}, transformers {settings['transformers']}",
        "",
        "```",
        command(settings),
        "```",
        "",
        "## Scores on validation text",
        "",
        *(["| | |", "|---|---|", *table] if table else ["None yet."]),
        "",
    ]
    return "\n".join(lines)


def command(settings: Mapping[str, Any]) -> str:
    """The call of `train_lm` that these settings came from, less what says where to compute and to save."""
    preset = settings["preset"]
    first = ["train_lm", *(["--preset", preset] if preset != "default" else [])]
    return command_line(first, settings, PRESETS[preset], _NOT_FOR_OTHERS)
