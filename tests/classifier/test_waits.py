"""`train_classifier` does not make the host wait for a GPU; see tests/gpu."""

import pytest
from pretend import trainers_on_it

from classifier import cli
from sqrtvocab.training import read_metrics


def train_there():
    with trainers_on_it():
        return cli.train_main()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_training_step_never_waits(forked, tiny_flags, tmp_path, precision):
    steps = ["--max-steps", "4", "--eval-every", "2"]
    flags = [*tiny_flags, *steps, "--precision", precision, "--out", tmp_path / "run"]
    result = forked(train_there, flags, tmp_path, {}).wait()
    assert result.code == 0, result.err
    assert [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [2, 2, 4, 4]
