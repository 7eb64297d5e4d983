"""The paper's table 2: memory of a training step of GPT-2, GPT-Neo and ours, and on which GPU it fits.

    python scripts/table2_memory.py                  # all sizes and settings, about four minutes on one core
    python scripts/table2_memory.py --quick          # small shapes, to see that everything works
    python scripts/table2_memory.py --gpu h100 --out runs/h100       # for another GPU

Nothing is run: the figures come from shapes (`sqrtvocab.measure.simulate`), with the attention kernel and the
number formats that CUDA would choose. Writes memory.md, memory.csv and memory.png.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts.common.command import make_folder, read_flags, run_script
from scripts.common.lm_models import FUSED_GELU, MODELS, QUICK_SIZES, Shape, make_model, simulate_training
from scripts.common.pages import write_csv, write_figure, write_page
from scripts.common.paper_memory import CASES, PAPER, SIZES, setting_of
from scripts.common.records import Row
from scripts.reports.memory_figure import draw
from scripts.reports.memory_page import pages
from sqrtvocab.errors import UserError

# torch is imported where it is used: --help must not wait for it.


@dataclass(frozen=True)
class Config:
    """Memory of a training step of GPT-2, GPT-Neo and ours, and on which GPU it fits."""

    quick: bool = False
    """Two small shapes, to see that everything works; written to runs/quick."""
    gpu: tuple[Literal["t4", "a10g", "l40s", "a100-40", "a100", "h100"], ...] = ("t4", "a10g", "l40s")
    """The GPUs to judge by; several can be named."""
    out: Path | None = None
    """Folder for memory.md, memory.csv and memory.png; docs/results by default."""

    def __post_init__(self) -> None:
        if not self.gpu:
            raise UserError("--gpu: name at least one")
        if not (self.quick or self.out or set(PAPER) <= set(self.gpu)):
            raise UserError(
                f"--gpu: without the paper's {', '.join(PAPER)} the page in docs/results would lose them; "
                "name them, too, or another folder: --out DIR"
            )


def measure(sizes: Mapping[str, Shape]) -> list[Row]:
    """A row for each setting, size and model."""
    import torch
    from tqdm import tqdm

    from sqrtvocab.measure.gpu import GPUS
    from sqrtvocab.measure.simulate import PARTS

    models = {**MODELS, **FUSED_GELU}
    jobs = [(key, size, model) for key in CASES for size in sizes for model in models]
    rows = []
    for key, size, model in tqdm(jobs, desc="simulating", disable=None):
        name, shape, setting = models[model], sizes[size], setting_of(key, model)
        # One GPU for all: flash (Ampere and later) and the memory-efficient kernel (T4) keep the same.
        memory = simulate_training(name, shape, setting, GPUS["a10g"])
        with torch.device("meta"):
            parameters = sum(p.numel() for p in make_model(name, shape, setting).parameters())
        row = {
            "setting": key, "size": size, "hidden": shape.hidden_size, "layers": shape.num_layers,
            "model": model, "million_parameters": round(parameters / 1e6, 1), "peak_bytes": memory.peak,
            **{f"{part}_bytes": getattr(memory, part) for part in PARTS},
        }  # fmt: skip
        rows.append({column: str(value) for column, value in row.items()})
    return rows


def main(config: Config) -> None:
    """Simulate, tabulate, draw."""
    out = make_folder(config.out, config.quick)
    sizes = QUICK_SIZES if config.quick else SIZES
    rows = measure(sizes)
    write_csv(out / "memory.csv", rows)
    write_figure(out / "memory.png", draw(rows, sizes, config.gpu))
    write_page(out / "memory.md", *pages(rows, sizes, config.gpu))
    print(out / "memory.md")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
