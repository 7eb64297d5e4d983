"""docs/huggingface.md, executed from top to bottom."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    space: dict[str, object] = {"__name__": "page"}
    exec(compile(script, str(PAGE), "exec"), space)
    printed = capsys.readouterr().out
    assert "eval_accuracy" in printed
    losses = re.search(r"loss ([\d.]+) with the head, ([\d.]+) with a linear layer", printed)
    assert losses
    before, after = map(float, losses.groups())
    assert 2 < before < 6.9
    assert abs(after - before) < 0.5
    assert (tmp_path / "flat" / "model.safetensors").is_file()
    assert (tmp_path / "mine" / "compressed_lm.py").is_file()
