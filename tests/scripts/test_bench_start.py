"""The benchmark of the start measures every part of small runs, and verification on a text made larger."""

import pytest

from scripts.bench_start import QUICK, row_of


def test_a_row_tells_the_second_evaluation_from_the_first(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
    spent = {
        "imports": [(0, 4.0)],
        "report": [(5.0, 0.1), (9.0, 0.1), (12.0, 0.1)],
        "score": [(5.5, 1.0), (9.5, 1.5), (12.5, 1.0)],
        "metrics": [(6.5, 0.25), (11.0, 0.25), (13.5, 0.25)],
        "show": [(7.0, 0.5), (11.5, 0.25), (14.0, 2.0)],
        "save_best": [(8.0, 0.1)],
        "save_last": [(8.2, 0.4), (11.8, 0.3), (16.2, 0.3)],
    }
    assert row_of(spent, tmp_path) == {
        "imports": 4.0, "to step 1": 5.0, "evaluation 1": 1.75, "2": 2.0, "best": 0.1, "last": 0.3, "MB": 3.0
    }  # fmt: skip


@pytest.mark.slow
def test_quick(call, tmp_path):
    result = call("bench_start", "--quick", "--tokens", 100_000, "--repeats", 1, "--scratch", tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for name in QUICK:
        (row,) = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
        imports, to_step_1, *rest = map(float, row)
        assert 0 < imports < to_step_1
        assert len(rest) == 5
        assert min(rest) > 0
    assert [line.split()[0] for line in lines[-2:]] == ["begun", "resumed"]
    assert not list(tmp_path.glob("tmp*"))  # what was written is gone
    assert call("bench_start", "--repeats", 0).returncode == 2
