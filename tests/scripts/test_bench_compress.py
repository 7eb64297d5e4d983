"""What compress_vocab loses, measured on a small run."""

import json

import pytest

from lm.cli import train_main

FLAGS = (
    "--data stories:60 --tokenizer train:300 --hidden-size 16 --num-layers 1 --num-attention-heads 2 "
    "--seq-len 32 --batch-size 4 --max-steps 3 --eval-tokens 0 --sample-every 0 --device cpu --head flat"
)


@pytest.mark.slow
def test_the_table_begins_with_the_models_own_loss(forked, call, tmp_path):
    cache = {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}
    for out, flags in (("r", "--no-prior"), ("with-bias", "--prior"), ("groups", "--head grouped-linear")):
        argv = [*FLAGS.split(), *flags.split(), "--out", tmp_path / out]
        assert forked(train_main, argv, tmp_path, cache).wait().code == 0
    for out in ("r", "with-bias"):
        result = call(
            "bench_compress", tmp_path / out, "--calibration", 100, 500, "--steps", 2, "--repeats", 1
        )
        assert result.returncode == 0, result.stderr
        metrics = [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
        own = [line["loss/validation"] for line in metrics if "loss/validation" in line][-1]
        assert f"| flat, as it was |  |  | {own:.4f} |" in result.stdout
        assert result.stdout.count("grouped-linear, clusters") == 2
        assert "| flat, trained on |  | 2 |" in result.stdout
        assert "| sampling, top-k 50, 32 |" in result.stdout
    refused = call("bench_compress", tmp_path / "groups")
    assert refused.returncode == 2
    assert refused.stderr.count("expected a run of train_lm --head flat") == 1
