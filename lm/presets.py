"""Named settings: what each is for and its command."""

from __future__ import annotations

from lm.config import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    # The paper's smallest shape with the best head known: grouped-linear, groups by frequency, prior.
    #   train_lm
    "default": TrainConfig(),
    # The same model in small steps, which bring the loss down sooner on a CPU: eleven minutes on one core.
    # The rate falls to zero over the 900 of them; more (--max-steps) end lower. On an excerpt of TinyStories:
    #   train_lm --preset fast                               # validation loss 3.473
    "fast": TrainConfig(
        preset="fast",
        batch_size=4,
        max_steps=900,
        warmup_steps=60,
        eval_every=300,
        sample_every=300,
    ),
    # The paper's models: grouped head, consecutive ids, no prior; 8 layers, 8 heads, one epoch.
    #   train_lm --preset paper-128
    # Its baselines: the same with --head flat --tie-embeddings, and --backbone gpt-neo.
    **{
        f"paper-{size}": TrainConfig(
            preset=f"paper-{size}",  # type: ignore[arg-type]
            head="grouped",
            grouping="index",
            prior=False,
            lr=1e-3,
            hidden_size=size,
        )
        for size in (128, 256, 512)
    },
    # The paper's ablation of the group size: hidden 64, 4 layers, 2 heads, half an epoch.
    #   train_lm --preset ablation --num-groups 100
    "ablation": TrainConfig(
        preset="ablation",
        head="grouped",
        grouping="index",
        prior=False,
        lr=1e-3,
        hidden_size=64,
        num_layers=4,
        num_attention_heads=2,
        epochs=0.5,
    ),
    # A model that tells simple stories, after about a minute on two free CPU cores, without a network.
    # Validation loss 1.69, 61 % of the tokens right.
    #   train_lm --preset quickstart
    "quickstart": TrainConfig(
        preset="quickstart",
        data="stories:4000",
        hidden_size=64,
        num_layers=4,
        num_attention_heads=4,
        seq_len=256,
        batch_size=8,
        warmup_steps=20,
        max_steps=500,
        eval_every=250,
        eval_tokens=16_384,
        sample_every=250,
    ),
}
