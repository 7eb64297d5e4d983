"""The paper's table 2: memory of a training step of GPT-2, GPT-Neo and ours, and on which GPU it fits.

    python scripts/table2_memory.py                  # all sizes and settings, about four minutes on one core
    python scripts/table2_memory.py --quick          # small shapes, to see that everything works
    python scripts/table2_memory.py --gpu h100 --out runs/h100       # for another GPU

Nothing is run: the figures come from shapes (`sqrtvocab.measure.simulate`), with the attention kernel and the
number formats that CUDA would choose. Writes memory.md, memory.csv and memory.png.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from lm_models import FLAT, MODELS, QUICK_SIZES, Setting, Shape, make_model, simulate_training
from results import (
    GRID,
    INK,
    MUTED,
    SURFACE,
    command_line,
    folder,
    table,
    write_csv,
    write_figure,
    write_page,
)

from sqrtvocab.errors import UserError
from sqrtvocab.flags import one_line_errors

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    from sqrtvocab.measure.gpu import GPU

SIZES = {
    "8.1 M": Shape(hidden_size=128),
    "19.3 M": Shape(hidden_size=256),
    "152 M": Shape(hidden_size=1024),
    "507 M": Shape(hidden_size=2048),
    "659 M": Shape(hidden_size=2048, num_layers=11),
}
PAPER_SETTING, BEST = "paper", "best"
SETTINGS = {
    PAPER_SETTING: Setting(optimizer="foreach", old_loss=True),
    "eager": Setting(attention="eager", dropout=0.1, optimizer="foreach"),
    "fp32": Setting(),
    "half": Setting(precision="half"),
    BEST: Setting(precision="half", checkpoint=True),
}
TITLES = {
    PAPER_SETTING: "`transformers` of 2024 with its defaults, float32",
    "eager": "Eager attention with dropout 0.1, float32",
    "fp32": "Fair: float32, fused attention, no dropout, on both sides",
    "half": "Fair: half precision (autocast), fused attention, no dropout, on both sides",
    BEST: "Best settings, on both sides: as before, with activation checkpointing",
}
NOTES = {
    PAPER_SETTING: "GPT-2 and ours with fused attention and GPT-2's default dropout of 0.1; GPT-Neo with "
    "eager attention (`transformers` has no fused one for it without a further package) and its default "
    "dropout of 0. The flat models shift the logits by copying them, as `transformers` did until "
    "[January 2025](https://github.com/huggingface/transformers/pull/35646), and the training loop keeps the "
    "model's outputs until the next step. torch's default AdamW (foreach).",
    "eager": "The attention of `transformers` before mid-2024, with dropout on both sides; the logits are "
    "neither copied nor kept.",
    "fp32": "GPT-Neo's attention is eager here too.",
    "half": "By CUDA's rules for autocast: softmax, layer norm, powers (of which GPT-2's GELU is made) and "
    "the loss stay in float32. The figures are those of bfloat16 and flash attention for every GPU. A T4 "
    "would take float16, of as many bytes, and the memory-efficient kernel, which keeps the same tensors.",
    BEST: "bfloat16 and flash attention for every GPU, as above.",
}
# Table 2: GB, None for out of memory, per GPU and size: GPT-2, GPT-Neo, ours.
PAPER: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
    "t4": {"8.1 M": (None, 13.0, 3.8), "19.3 M": (None, None, 5.2), "152 M": (None, None, None)},
    "a10g": {"8.1 M": (14.0, 13.0, 3.8), "19.3 M": (16.0, 18.0, 5.2), "152 M": (None, None, 16.6)},
    "l40s": {"8.1 M": (14.0, 13.0, 3.8), "19.3 M": (16.0, 18.0, 5.2), "152 M": (28.0, 30.0, 16.6)},
}
PAPER["t4"]["659 M"] = PAPER["a10g"]["659 M"] = (None, None, None)
PAPER["l40s"]["659 M"] = (None, None, 39.0)
STATED = {"507 M": "659 M"}  # hidden 2048 with the 8 layers that the paper states -> the row it may be

COLUMNS = ("GPT-2", "GPT-Neo", "grouped")  # of the paper's table
PLACES = {  # of a figure here, beside the paper's
    "near": "near: at most 5 % below the paper's, or above by less than its rounding",
    "below": "lower: the rest is not explained",
    "above": "above: refuted",
}
Peaks = dict[tuple[str, str, str], int]  # setting, size and model -> bytes

COLORS = {  # in the order of sqrtvocab.measure.simulate.PARTS
    "parameters": "#4a3aa7",
    "gradients": "#1baf7a",
    "optimiser": "#eda100",
    "activations": "#2a78d6",
    "logits": "#eb6834",
}


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


def setting_of(key: str, model: str) -> Setting:
    """The setting for this model: in the paper's, GPT-2 has its default dropout."""
    setting = SETTINGS[key]
    return replace(setting, dropout=0.1) if key == PAPER_SETTING and model != "GPT-Neo" else setting


def measure(sizes: dict[str, Shape]) -> list[dict[str, Any]]:
    """A row for each setting, size and model."""
    import torch
    from tqdm import tqdm

    from sqrtvocab.measure.gpu import GPUS
    from sqrtvocab.measure.simulate import PARTS

    jobs = [(key, size, model) for key in SETTINGS for size in sizes for model in MODELS]
    rows = []
    for key, size, model in tqdm(jobs, desc="simulating", disable=None):
        name, shape, setting = MODELS[model], sizes[size], setting_of(key, model)
        # One GPU for all: flash (Ampere and later) and the memory-efficient kernel (T4) keep the same.
        memory = simulate_training(name, shape, setting, GPUS["a10g"])
        with torch.device("meta"):
            parameters = sum(p.numel() for p in make_model(name, shape, setting).parameters())
        rows.append(
            {
                "setting": key, "size": size, "hidden": shape.hidden_size, "layers": shape.num_layers,
                "model": model, "million_parameters": round(parameters / 1e6, 1), "peak_bytes": memory.peak,
                **{f"{part}_bytes": getattr(memory, part) for part in PARTS},
            }
        )  # fmt: skip
    return rows


def pages(rows: list[dict[str, Any]], sizes: dict[str, Shape], config: Config) -> list[str]:
    """The Markdown, part by part."""
    from sqrtvocab.measure.gpu import ALLOWANCE, GPUS
    from sqrtvocab.measure.machine import describe_machine
    from sqrtvocab.measure.simulate import AGREES_WITHIN

    peaks = {(row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows}
    shape = next(iter(sizes.values()))
    capacities = ", ".join(f"{GPUS[gpu].name} {GPUS[gpu].usable / 2**30:.2f}" for gpu in config.gpu)
    parts = [
        "# Memory of a training step",
        f"The paper's table 2. Batch {shape.batch_size} x {shape.seq_len} tokens, V = {shape.vocab_size:,}, "
        f"{shape.num_layers} layers, {shape.num_attention_heads} attention heads, AdamW; *grouped* is the "
        "paper's head with G = ⌊√V⌋, on GPT-2 as in the paper, *grouped-linear* our default. GiB, from "
        "shapes alone: no GPU was used. On a CPU the simulation agrees with real allocations within "
        f"{100 * AGREES_WITHIN:g} %, as the tests show. What is different on CUDA (attention kernels, the "
        "mask of dropout, autocast, storages of whole 512 bytes) is done by the rules in torch's sources; "
        "it has not been compared with a real GPU.",
        command_line(),
        f"Simulated on {describe_machine()}.",
        f"A GPU's capacity is what nvidia-smi reports (ECC on) less {ALLOWANCE / 2**30:.2f} GiB for driver, "
        f"CUDA context and workspaces: {capacities} GiB. `oom` is a peak above it. The allocator's "
        "fragmentation, which is not counted, comes on top of a peak.",
        "![Peak memory by part](memory.png)",
        "The bars show the moment of the peak. With a flat head that is in the loss, before there are "
        "gradients of the layers; where the logits are small it comes later, with gradients and fewer "
        "activations.",
        "## In short",
        table(
            ["setting", "", *(f"at {size}" for size in sizes)],
            [
                [key, f"{model} / grouped", *(f"{ratio(peaks, key, size, model):.2f}x" for size in sizes)]
                for key in SETTINGS
                for model in ("GPT-2", "GPT-Neo")
            ],
            left=2,
        ),
    ]
    if not config.quick:
        parts += against_the_paper(rows, peaks)
    beside = "" if config.quick else ", paper / here"
    names = [f"{name}{beside}" for name in ("GPT-2", "GPT-Neo", "ours (grouped)")]
    for key in SETTINGS:
        lines, differences = [], []
        for gpu in config.gpu:
            card = GPUS[gpu]
            for size in sizes:
                paper = PAPER.get(gpu, {}).get(size) if not config.quick else None
                cells = []
                for index, model in enumerate(COLUMNS):
                    here = verdict(card, peaks[key, size, model])
                    theirs = "-" if paper is None else _paper_cell(paper[index])
                    cells.append(here if config.quick else f"{theirs} / {here}")
                    if paper is not None and (paper[index] is None) == card.fits(peaks[key, size, model]):
                        told = f"{card.name}, {size}, {model}: paper {theirs}, here {here}; "
                        differences.append(told + reason(key, card, size, model, peaks))
                cells.append(verdict(card, peaks[key, size, "grouped-linear"]))
                cells.append(verdict(card, peaks[BEST, size, "grouped"]))
                lines.append([card.name, size, *cells])
        parts += [
            f"## {TITLES[key]}",
            f"`{key}`. {NOTES[key]} {shares(rows, key, next(iter(sizes)))}",
            table(
                ["GPU", "size", *names, "grouped-linear", "grouped, best settings"],
                lines,
                left=2,
            ),
        ]
        if differences:
            parts += [
                "Verdicts that differ from the paper's:",
                "\n".join(f"- {line}." for line in differences),
            ]
    return parts


def ratio(peaks: Peaks, key: str, size: str, model: str = "GPT-2") -> float:
    """How many times more a flat model takes than ours with the same settings; GPT-2's backbone is ours."""
    return peaks[key, size, model] / peaks[key, size, "grouped"]


def verdict(card: GPU, peak: int) -> str:
    return f"{peak / 2**30:.1f}" if card.fits(peak) else f"oom ({peak / 2**30:.1f})"


def shares(rows: list[dict[str, Any]], key: str, size: str) -> str:
    """Which part of the peak the logits are."""
    told = []
    for model in COLUMNS:
        row = next(r for r in rows if (r["setting"], r["size"], r["model"]) == (key, size, model))
        logits, peak = (int(row[column]) / 2**30 for column in ("logits_bytes", "peak_bytes"))
        told.append(f"{logits:.1f} of {model}'s {peak:.1f}")
    return f"Logits and what is made of them at {size}: {', '.join(told)} GiB."


def reason(key: str, card: GPU, size: str, model: str, peaks: Peaks) -> str:
    """What is known about a verdict that is another than the paper's."""
    peak = peaks[key, size, model]
    left = (card.usable - peak) / 2**30
    narrow = abs(left) < 0.1 * card.usable / 2**30
    if not card.fits(peak):
        fitting = [other for other in SETTINGS if card.fits(peaks[other, size, model])]
        told = ", ".join(f"`{other}` ({peaks[other, size, model] / 2**30:.1f})" for other in fitting)
        why = f"it fits under {told}" if told else "it fits under none of these settings"
        for smaller, row in STATED.items():
            if row == size:
                other = peaks[key, smaller, model]
                fits = "fits" if card.fits(other) else "does not fit either"
                why += f"; with the 8 layers that the paper states it takes {other / 2**30:.1f} and {fits}"
        return f"only {-left:.2f} GiB too much, and {why}" if narrow else why
    paper = peaks[PAPER_SETTING, size, model]
    why = [] if key == PAPER_SETTING else [f"{100 * (1 - peak / paper):.0f} % less than under `paper`"]
    if narrow:
        why.append(f"only {left:.2f} GiB are left for the allocator's fragmentation")
    return ", and ".join(why) or "not explained"


def standing(paper: float, here: float, model: str) -> str:
    """Which of `PLACES` what is allocated here has beside what the paper says is reserved."""
    if here > paper + rounding(model):
        return "above"
    return "near" if here >= 0.95 * paper - rounding(model) else "below"


def rounding(model: str) -> float:
    """By how much more than it prints the paper may have measured: the flat models' are whole numbers."""
    return 0.5 if model in FLAT else 0.05


def against_the_paper(rows: list[dict[str, Any]], peaks: Peaks) -> list[str]:
    """Which of the paper's figures each setting explains, leaves open or cannot have given."""
    figures = [
        (size, model, figure)
        for size in SIZES
        for model, figure in zip(COLUMNS, PAPER["l40s"][STATED.get(size, size)], strict=True)
        if figure is not None
    ]
    found: dict[str, dict[str, list[str]]] = {}
    lines = [[size, model, f"{figure:g}"] for size, model, figure in figures]
    for key in SETTINGS:
        found[key] = {place: [] for place in PLACES}
        for line, (size, model, figure) in zip(lines, figures, strict=True):
            here = peaks[key, size, model] / 2**30
            place = standing(figure, here, model)
            line.append(f"**{here:.1f}**" if place == "above" else f"{here:.1f}")
            found[key][place].append(f"{model} at {size}, {here:.1f} against {figure:g}")
    counts = {key: {place: len(names) for place, names in places.items()} for key, places in found.items()}
    most = max(counts, key=lambda key: counts[key]["near"])
    room = [
        figure + rounding(model) - peaks[most, size, model] / 2**30
        for size, model, figure in figures
        if standing(figure, peaks[most, size, model] / 2**30, model) == "near"
    ]
    in_gb = [standing(f / 1.073741824, peaks[most, s, m] / 2**30, m) for s, m, f in figures]
    parameters = {row["size"]: row["million_parameters"] for row in rows if row["model"] == "GPT-2"}
    stated, built = (parameters[size] for size in ("507 M", "659 M"))
    return [
        "## Against the paper's figures",
        "The paper reports memory *reserved*; here it is memory *allocated*, which can only be less. So a "
        "figure here above the paper's (**bold**) refutes the setting for that model. One below refutes "
        "nothing, and leaves the rest to fragmentation or to something else that was run: which, we do not "
        "know. The paper's figures of the flat models are whole numbers, so 0.5 is allowed for rounding "
        "there, and 0.05 for ours. Its 659 M model has hidden 2048 and, as stated, 8 layers, which makes "
        f"{stated} M parameters; with 11 layers there are {built} M. Its figure stands beside both.",
        table(["size", "model", "paper's figure", *(f"`{key}`" for key in SETTINGS)], lines, left=2),
        table(
            ["of these rows", *(f"`{key}`" for key in SETTINGS)],
            [[told, *(counts[key][place] for key in SETTINGS)] for place, told in PLACES.items()],
        ),
        f"Of all settings `{most}` is near the most:",
        "\n".join(f"- {told}: {'; '.join(found[most][place]) or 'none'}." for place, told in PLACES.items()),
        (f"The near ones leave {min(room):.1f} to {max(room):.1f} GiB for fragmentation. " if room else "")
        + "The paper's GB are taken for GiB. Were they 10⁹ bytes, this setting would be near "
        f"{in_gb.count('near')} of them and above {in_gb.count('above')}.",
    ]


def _paper_cell(value: float | None) -> str:
    return "oom" if value is None else f"{value:g}"


def draw(rows: list[dict[str, Any]], sizes: dict[str, Shape], gpus: tuple[str, ...]) -> Any:
    """A panel for each size: a bar for each model and setting, stacked by part; the GPUs as lines."""
    from matplotlib.figure import Figure

    from sqrtvocab.measure.gpu import GPUS

    shown = [size for size in sizes if size != "507 M"]
    lines = -(-len(shown) // 2)
    figure = Figure(figsize=(10.5, 4.1 * lines + 0.5), layout="constrained", facecolor=SURFACE)
    figure.get_layout_engine().set(hspace=0.06, wspace=0.04)
    panels = figure.subplots(lines, 2, squeeze=False).flatten()
    keys = {"fp32": "float32", "half": "half precision", BEST: "half precision,\ncheckpointing"}
    pitch = len(MODELS) + 0.8
    for panel, size in zip(panels, shown, strict=False):
        places = []
        top = max(row["peak_bytes"] for row in rows if row["setting"] in keys and row["size"] == size) / 2**30
        panel_top = 1.22 * top
        for number, (key, title) in enumerate(keys.items()):
            for index, model in enumerate(MODELS):
                row = next(r for r in rows if (r["setting"], r["size"], r["model"]) == (key, size, model))
                x, bottom = number * pitch + index, 0.0
                for part, color in COLORS.items():
                    height = int(row[f"{part}_bytes"]) / 2**30
                    panel.bar(x, height, 0.84, bottom, color=color, edgecolor=SURFACE, linewidth=0.8)
                    bottom += height
                panel.text(
                    x, bottom + 0.008 * panel_top, f"{bottom:.1f}", ha="center", va="bottom", fontsize=7.5,
                    color=INK, bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip
                places.append(x)
            panel.text(
                number * pitch + (len(MODELS) - 1) / 2, 0.99, title, ha="center", va="top", fontsize=8,
                color=MUTED, transform=panel.get_xaxis_transform(),
                bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        panel.set_ylim(0, panel_top)
        for gpu in gpus:
            if (usable := GPUS[gpu].usable / 2**30) < top * 1.1:
                panel.axhline(usable, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
                panel.text(
                    1.005, usable, GPUS[gpu].name, ha="left", va="center", fontsize=8, color=MUTED,
                    transform=panel.get_yaxis_transform(),
                )  # fmt: skip
        panel.set_xticks(places, [*MODELS] * len(keys), rotation=40, ha="right", rotation_mode="anchor",
                         fontsize=7.5, color=MUTED)  # fmt: skip
        layers = f"hidden {sizes[size].hidden_size}, {sizes[size].num_layers} layers"
        name = f"{size} parameters" if size in SIZES else size
        panel.set_title(f"{name} ({layers})", fontsize=10, loc="left", color=INK)
        panel.set_ylabel("GiB", fontsize=8.5, color=MUTED)
        panel.tick_params(axis="y", labelsize=8, colors=MUTED, length=0)
        panel.tick_params(axis="x", length=0)
        panel.yaxis.grid(color=GRID, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.set_facecolor(SURFACE)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        panel.spines["bottom"].set_color(GRID)
    handles = [panels[0].bar(0, 0, color=color) for color in COLORS.values()]
    figure.legend(
        handles, list(COLORS), loc="outside upper center", ncols=5, frameon=False, fontsize=9,
        labelcolor=INK, title="Memory at the peak of a training step, by part", title_fontsize=10.5,
    )  # fmt: skip
    return figure


def main(config: Config) -> None:
    out = folder(config.out, config.quick)
    sizes = QUICK_SIZES if config.quick else SIZES
    rows = measure(sizes)
    write_csv(out / "memory.csv", rows)
    write_figure(out / "memory.png", draw(rows, sizes, config.gpu))
    write_page(out / "memory.md", *pages(rows, sizes, config))
    print(out / "memory.md")


if __name__ == "__main__":
    with one_line_errors("table2_memory"):
        arguments = tyro.cli(Config, description=__doc__)
    from sqrtvocab.training import exit_code

    sys.exit(exit_code("table2_memory", lambda: main(arguments)))
