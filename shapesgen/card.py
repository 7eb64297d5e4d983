"""The dataset card: README.md of a set on disk, whose header tells Hugging Face where the splits are."""

from __future__ import annotations

from shapesgen.attributes import ATTRIBUTES
from shapesgen.choices import SPLITS, Format
from shapesgen.recipe import Recipe
from shapesgen.shards import SUFFIX


def dataset_card(recipe: Recipe, form: Format) -> str:
    splits = [split for split in SPLITS if recipe.size(split)]
    files = "".join(f"  - split: {s}\n    path: data/{s}-*{SUFFIX[form]}\n" for s in splits)
    configs = f"configs:\n- config_name: default\n  data_files:\n{files}" if form != "folder" else ""
    first, end = recipe.class_range
    rows = "".join(f"| {name} | {', '.join(recipe.space.options[name])} |\n" for name in ATTRIBUTES)
    counts = ", ".join(f"{split} {recipe.size(split):,}" for split in splits)
    load = {
        "parquet": 'datasets.load_dataset("parquet", data_dir="DIR")',
        "webdataset": 'datasets.load_dataset("webdataset", data_dir="DIR")',
        "folder": 'torchvision.datasets.ImageFolder("DIR/train")',
    }[form]
    return f"""---
pretty_name: shapesgen
task_categories:
- image-classification
tags:
- synthetic
- extreme-classification
{configs}---
# Shapes

{recipe.num_images:,} images, 100 x 100 pixels, of {end - first:,} classes ({counts}), drawn by `shapesgen`.
A class is a combination of the options below; `label` numbers them like nested loops, the first attribute
outermost. Every image is a function of seed, class and instance; its file name is class and instance.
Seed {recipe.seed}, rotation cue {recipe.rotation_cue}, sampling {recipe.sampling}.

| attribute | options |
|---|---|
{rows}
```python
{load}
```

`config.json` holds the settings and `manifest.json` the hashes of all shards; `shapesgen verify DIR` checks
them.
"""
