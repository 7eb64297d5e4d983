"""The shapes experiment is what it always was: the weights after eight steps, to the bit, of a loop written
out here from the paper's settings and nothing of the trainer."""

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from classifier.cli import train_main
from shapesgen import AttributeSpace, render
from sqrtvocab import Partition
from sqrtvocab.heads import make_head

STEPS, BATCH, ACCUMULATE = 8, 4, 2
KEPT = {
    "shape": ["circle", "star"], "pattern": ["solid"], "rotation": [0], "size": ["tiny", "huge"],
    "texture": ["none"], "opacity": [1.0], "border": ["solid"],
}  # fmt: skip


def test_the_weights_after_eight_steps(forked, tiny_flags, tmp_path):
    torch.set_num_threads(1)
    argv = [*tiny_flags, "--images-per-class", 10, "--max-steps", STEPS, "--out", tmp_path / "r"]
    assert forked(train_main, argv, tmp_path, {}).wait().code == 0
    found = load_file(tmp_path / "r" / "last" / "model.safetensors")

    space = AttributeSpace.only(KEPT)
    torch.manual_seed(0)
    partition = Partition.aligned(space.radices)
    layers = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
    convolutions = nn.Sequential(*layers)
    embed = nn.Linear(128 * 12 * 12, 512)
    head = make_head("grouped", 512, space.num_classes, partition=partition)
    model = nn.ModuleList([convolutions, embed, head]).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    images = 8 * space.num_classes  # eight of ten are for training
    order = np.random.default_rng([0, 0]).permutation(images)
    for step in range(STEPS):
        for micro_batch in range(ACCUMULATE):
            start = (step * ACCUMULATE + micro_batch) * BATCH
            chosen = order[start : start + BATCH]
            pixels = render(space, chosen // 8, chosen % 8, seed=0)
            x = 1 - torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
            hidden = torch.relu(embed(convolutions(x).flatten(1)))
            loss = head(hidden, torch.from_numpy(chosen // 8), reduction="sum").loss
            (loss / (BATCH * ACCUMULATE)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    parts = {"encoder.convolutions.": convolutions, "encoder.embed.": embed, "head.": head}
    expected = {
        prefix + key: value for prefix, part in parts.items() for key, value in part.state_dict().items()
    }
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
