"""The commands of docs/your-images.md, executed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from classifier import cli

PAGE = Path(__file__).parents[2] / "docs" / "your-images.md"
COMMANDS = {
    "train_classifier": cli.train_main,
    "eval_classifier": cli.eval_main,
    "predict_classifier": cli.predict_main,
    "export_classifier": cli.export_main,
}
SHORT = ["--max-steps", "1", "--device", "cpu", "--workers", "0"]


@pytest.mark.slow
def test_the_commands_run(forked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = ["file,species"]
    for name in ("oak", "maple", "birch"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            suffix = "jpg" if i % 2 else "png"
            path = tmp_path / "photos" / name / f"{i}.{suffix}"
            Image.fromarray(rng.integers(0, 256, (30, 20 + i, 3), np.uint8)).save(path)
            rows.append(f"photos/{name}/{i}.{suffix},{name}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    (tmp_path / "families.csv").write_text("oak,beeches\nbirch,birches\nmaple,soapberries\n")
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(lines) == 9
    for number, (program, *flags) in enumerate(lines):
        more = SHORT if program == "train_classifier" else SHORT[2:]
        if program == "export_classifier":
            more = []
        if number > 4:
            more = [*more, "--out", f"runs/{number}"]
        result = forked(
            COMMANDS[program], [*flags, *more], tmp_path, {"SQRTVOCAB_CACHE": str(tmp_path)}
        ).wait()
        assert result.code == 0, result.err
    (lines_without_this_package,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert (
        len(lines_without_this_package.split("\n")) - lines_without_this_package.count("\n\n") == 9
    )  # 8 and the end
    used = subprocess.run(
        [sys.executable, "-c", lines_without_this_package], cwd=tmp_path, capture_output=True, text=True
    )
    assert used.returncode == 0, used.stderr
    assert set(re.findall("oak|maple|birch", used.stdout)) == {"oak", "maple", "birch"}
