"""A run: begun, continued from its folder, and refused where it would be another one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from sqrtvocab.errors import UserError
from sqrtvocab.settings import RunFlags, StepFlags, read_config
from sqrtvocab.training import Logbook, Run, load_checkpoint, look_into_folder, open_run, set_learning_rate


@dataclass(frozen=True)
class Config(RunFlags, StepFlags):
    PROGRAM: ClassVar[str] = "train_it"
    MODULE: ClassVar[str] = "it.train"


@pytest.fixture
def open_it(tmp_path, runtime):
    """`open_it(max_steps=9)` opens the run in the folder `a run`, with a model of its own."""

    def opened(**flags) -> Run:
        config = Config(out=tmp_path / "a run", **flags)
        model = nn.Linear(2, 3)
        optimizer = torch.optim.Adam(model.parameters())
        resolved = {"total_steps": config.total_steps(100), "classes": 3}
        folder = look_into_folder(config, runtime)
        return open_run(
            folder, config, resolved, ("seed", "classes"), model, optimizer, runtime.scaler(), runtime
        )

    return opened


def step(run: Run) -> None:
    run.model(torch.ones(1, 2)).sum().backward()
    run.optimizer.step()
    run.step, run.minutes = run.step + 1, run.minutes + 0.5


def test_a_run_goes_on_where_it_was(open_it):
    run = open_it(max_steps=9)
    assert (run.step, run.minutes, run.best, run.metrics, run.changes) == (0, 0, None, {}, [])
    assert json.loads((run.folder / "config.json").read_text())["classes"] == 3
    step(run)
    run.best, run.metrics = [0.5, -1.0], {"loss": 1.0}
    run.save_best()
    run.save_last()
    later = open_it(max_steps=9, resume="auto", lr=0.25)
    assert (later.step, later.minutes, later.best) == (1, 0.5, [0.5, -1.0])
    assert later.changes == ["lr from 0.001 to 0.25"]
    assert torch.equal(later.model.weight, run.model.weight)
    for mine, theirs in zip(later.optimizer.state.values(), run.optimizer.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
    assert load_checkpoint(run.folder, "best").state["metrics"] == {"loss": 1.0}


@pytest.mark.parametrize("best", [[float("inf"), 0.0], float("nan"), None])
def test_a_score_that_is_not_finite_is_beaten_by_any(open_it, best):
    run = open_it()
    run.best = best
    run.save_last()
    assert open_it(resume="auto").best is None


def test_a_cosine_cannot_be_stretched_but_left(open_it):
    open_it(max_steps=9, schedule="cosine").save_last()
    assert open_it(max_steps=9, schedule="cosine", resume="auto").changes == []
    with pytest.raises(
        UserError, match=r"total steps is 9 there and 10 here; give the same --epochs and --max"
    ):
        open_it(max_steps=10, schedule="cosine", resume="auto")
    assert open_it(max_steps=10, resume="auto").changes == ["schedule from cosine to constant"]
    open_it(max_steps=11, resume="auto")  # a constant rate can go on for ever


def test_another_run_is_refused_before_anything_is_written(open_it):
    run = open_it()
    run.save_last()
    before = (run.folder / "config.json").read_text()
    with pytest.raises(UserError, match="a run is another run: seed is 0 there and 1 here"):
        open_it(seed=1, resume="auto")
    assert (run.folder / "config.json").read_text() == before


def test_settings_of_another_program_are_refused(open_it):
    run = open_it()
    run.save_last()
    path: Path = run.folder / "config.json"
    path.write_text(json.dumps({**read_config(run.folder), "lr": "high"}))
    with pytest.raises(
        UserError, match=r"config.json: not the settings of a run of train_it: .*'lr' cannot be"
    ):
        open_it(resume="auto")


def test_what_it_says(open_it, capsys):
    run = open_it(max_steps=1, schedule="cosine")
    book = Logbook(run.folder)
    run.introduce(book, {"data": "none"})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"run        {run.folder}, from step 0"
    assert lines[2:] == ["data       none", f"watch      tensorboard --logdir {run.folder.parent}"]
    assert not run.has_nothing_to_do(book)
    run.close(book, "SIGINT received", "look at it")
    assert capsys.readouterr().err.splitlines() == [
        f"stopped after step 0: SIGINT received; continue with: train_it --resume '{run.folder}'",
        f"saved in {run.folder}; look at it",
    ]
    step(run)
    assert run.has_nothing_to_do(Logbook(run.folder))
    said = capsys.readouterr().err
    assert said.startswith("nothing to do: the run has its 1 steps; ")
    assert said.endswith("can add more (with --schedule constant)\n")
    run.close(Logbook(run.folder), "SIGINT received", "look at it")  # in its last step: it was not stopped
    assert capsys.readouterr().err == f"saved in {run.folder}; look at it\n"


def test_the_learning_rate_of_a_step():
    optimizer = torch.optim.Adam([{"params": [torch.ones(1)]}, {"params": [torch.ones(2)]}])
    assert set_learning_rate(optimizer, Config(lr=0.8, schedule="cosine"), 5, 10) == pytest.approx(0.4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4, 0.4])
