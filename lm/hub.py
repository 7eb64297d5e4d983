"""What a model's folder holds beside its weights, so that others can use it: code, tokenizer, model card."""

from __future__ import annotations

# In a process that has not imported `lm.model`, `from_pretrained(folder, trust_remote_code=True)` runs this file.
# It names one package, the one to install: transformers looks for the imports of such a file first, and would
# advise to install a package "lm".
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
