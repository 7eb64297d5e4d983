"""Checkpoints: whole or absent, verified when read, with a way back."""

import contextlib
import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from sqrtvocab import make_head
from sqrtvocab.atomic import new_folder
from sqrtvocab.training import (
    RunError,
    UserError,
    load_checkpoint,
    require_space,
    save_checkpoint,
    write_json,
)
from sqrtvocab.training.run_folder import find_checkpoint, require_same_run


class Tied(nn.Module):
    """Two names for one weight, as in a language model, and a convolution in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


def save_steps(run, *steps):
    """Save a model of its own for each step; return the last one."""
    run.mkdir(exist_ok=True)
    for step in steps:
        torch.manual_seed(step)
        model = Tied()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        sum(parameter.sum() for parameter in model.parameters()).backward()
        optimizer.step()
        save_checkpoint(
            run, "last", model, {"step": step}, {"optimizer": optimizer.state_dict()}, {"c.json": {"a": 1}}
        )
    return model, optimizer


def test_a_document_with_what_is_no_text(tmp_path):
    """Such as a model card with a flag that the shell took from a file name in another encoding."""
    save_checkpoint(tmp_path, "last", Tied(), {"step": 1}, None, {"README.md": "--text-column \udcff"})
    assert (load_checkpoint(tmp_path, "last").folder / "README.md").read_text() == "--text-column \\udcff"


def test_round_trip_of_weights_state_and_optimiser(tmp_path):
    model, optimizer = save_steps(tmp_path, 1)
    checkpoint = load_checkpoint(tmp_path, "last")
    assert checkpoint is not None
    assert checkpoint.state["step"] == 1
    assert json.loads((checkpoint.folder / "c.json").read_text()) == {"a": 1}
    other = Tied()
    checkpoint.load_weights(other)
    assert other.output.weight is other.embedding.weight
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
        assert other.state_dict()[name].stride() == value.stride()
    for index, saved in checkpoint.load_training()["optimizer"]["state"].items():
        for key, value in optimizer.state_dict()["state"][index].items():
            assert torch.equal(saved[key], value)


def test_the_one_before_is_kept(tmp_path):
    save_steps(tmp_path, 1, 2, 3)
    assert sorted(os.listdir(tmp_path)) == ["last", "last.previous"]
    assert json.loads((tmp_path / "last.previous" / "state.json").read_text())["step"] == 2


def test_best_keeps_weights_only(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, "best", nn.Linear(2, 2), {"step": step})
    assert sorted(os.listdir(tmp_path)) == ["best"]
    assert sorted(os.listdir(tmp_path / "best")) == ["model.safetensors", "state.json"]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[0 if path.suffix == ".json" else -1] ^= 1  # the last byte of the JSON is a line break
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage", [flip_a_bit, truncate, lambda path: path.unlink()], ids=["flip", "cut", "gone"]
)
@pytest.mark.parametrize("file_name", ["model.safetensors", "training.pt", "state.json"])
def test_a_damaged_checkpoint_falls_back_loudly(tmp_path, capsys, damage, file_name):
    save_steps(tmp_path, 1, 2)
    damage(tmp_path / "last" / file_name)
    checkpoint = load_checkpoint(tmp_path, "last")
    assert checkpoint.state["step"] == 1
    warning = capsys.readouterr().err
    assert warning.startswith("WARNING")
    assert file_name in warning
    assert "last.previous, step 1" in warning


def test_all_damaged_is_an_error_that_names_each(tmp_path):
    save_steps(tmp_path, 1, 2)
    truncate(tmp_path / "last" / "model.safetensors")
    truncate(tmp_path / "last.previous" / "training.pt")
    with pytest.raises(UserError, match=r"no usable checkpoint: .*model\.safetensors.*training\.pt"):
        load_checkpoint(tmp_path, "last")


@pytest.mark.parametrize("call", range(14))
def test_a_crash_at_any_moment_leaves_a_checkpoint(tmp_path, monkeypatch, call):
    """Every call that touches the disk fails in turn, as if the process had died there."""
    save_steps(tmp_path, 1, 2)
    calls = iter(range(100))

    def dying(function):
        def wrapped(*args, **kwargs):
            if next(calls) == call:
                raise MemoryError("killed here")
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        for module, name in [
            (os, "fsync"),
            (shutil, "rmtree"),
            (torch, "save"),
            (os, "rename"),
            (os, "replace"),
        ]:
            patch.setattr(module, name, dying(getattr(module, name)))
        with contextlib.suppress(MemoryError):
            save_steps(tmp_path, 3)
    checkpoint = load_checkpoint(tmp_path, "last")
    assert checkpoint.state["step"] in (2, 3)
    torch.manual_seed(0)
    checkpoint.load_weights(Tied())
    save_steps(tmp_path, 4)  # the leftovers are in nobody's way
    assert load_checkpoint(tmp_path, "last").state["step"] == 4


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("sqrtvocab.training.checkpoint.save_model", SafetensorError("I/O error: no space left")),
        ("torch.save", RuntimeError("file write failed: no space left\nframe #1")),
        ("os.fsync", OSError(28, "no space left")),
    ],
)
def test_a_full_disk_keeps_the_checkpoint_and_names_it(tmp_path, monkeypatch, function, error):
    save_steps(tmp_path, 1)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(function, fail)
    with pytest.raises(RunError) as raised:
        save_steps(tmp_path, 2)
    assert f"cannot write {tmp_path}/last (is the disk full?): " in str(raised.value)
    assert "no space left" in str(raised.value)
    assert str(raised.value).endswith(f"is kept: {tmp_path}/last")
    assert os.listdir(tmp_path) == ["last"]
    assert load_checkpoint(tmp_path, "last").state["step"] == 1


def test_weights_of_another_model(tmp_path):
    save_checkpoint(tmp_path, "best", nn.Linear(2, 3), {})
    with pytest.raises(UserError, match="is of another model") as error:
        load_checkpoint(tmp_path, "best").load_weights(nn.Linear(2, 4))
    assert "\n" not in str(error.value)


def test_other_classes_in_tables_of_the_same_shapes_are_refused(tmp_path):
    """10 or 11 classes fill three groups of four; the file of weights itself tells them apart."""
    ten, eleven = (nn.ModuleDict({"head": make_head("grouped", 4, V, num_groups=3)}) for V in (10, 11))
    save_checkpoint(tmp_path, "last", ten, {"step": 1})
    checkpoint = load_checkpoint(tmp_path, "last")
    checkpoint.load_weights(ten)
    with pytest.raises(
        UserError, match=r"model\.safetensors is of another model: head\.num_classes is 10 the"
    ):
        checkpoint.load_weights(eleven)


# ---- folders


def test_a_new_folder_is_whole_or_absent(tmp_path):
    (tmp_path / ".run.tmp").mkdir()  # of a process that was killed
    (tmp_path / ".run.tmp" / "half").touch()
    with pytest.raises(IsADirectoryError), new_folder(tmp_path / "run") as draft:
        draft.write_text("")
    assert os.listdir(tmp_path) == []
    with new_folder(tmp_path / "run") as draft:
        (draft / "file").touch()
        assert not (tmp_path / "run").exists()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["run", "run/file"]
    with pytest.raises(FileExistsError), new_folder(tmp_path / "run"):
        pass


# ---- run folders


def test_a_run_folder_in_use_is_not_overwritten(tmp_path):
    run = tmp_path / "run"
    assert find_checkpoint(run, None) is None
    assert find_checkpoint(run, "auto") is None
    save_steps(run, 1)
    with pytest.raises(UserError, match="holds something other than a run"):
        find_checkpoint(run, "auto")
    write_json(run / "config.json", {})
    with pytest.raises(
        UserError, match=r"there is a run already; continue it with --resume auto or name another --out"
    ):
        find_checkpoint(run, None)
    assert find_checkpoint(run, "auto").state["step"] == 1
    assert find_checkpoint(run, str(run)).state["step"] == 1


def test_resuming_nothing_by_name(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        find_checkpoint(tmp_path, str(tmp_path))


def test_differences_are_all_named_with_both_values(tmp_path):
    with pytest.raises(UserError, match="head is 'flat' there and 'grouped' here; lr is 1 there and 2 here"):
        require_same_run(
            {"head": "flat", "lr": 1, "x": 0}, {"head": "grouped", "lr": 2, "x": 1}, ("head", "lr"), tmp_path
        )
    require_same_run({"head": "flat", "x": 0}, {"head": "flat", "x": 1}, ("head",), tmp_path)


def test_disk_space(tmp_path):
    require_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(UserError, match=r"--out .*: not enough disk: .* GB free, .* need 1000000000.0 GB"):
        require_space(tmp_path / "not" / "yet", 10**18)


def test_what_is_there_already_needs_no_space(tmp_path, monkeypatch):
    save_steps(tmp_path / "run", 1)
    held = sum(file.stat().st_size for file in (tmp_path / "run" / "last").iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    require_space(tmp_path / "run", held + 10)
    with pytest.raises(UserError, match="not enough disk"):
        require_space(tmp_path / "run", held + 11)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=rf"--out {tmp_path}/file/x: cannot write in .*/file: Not a directory"
    ):
        require_space(tmp_path / "file" / "x", 1)
    with pytest.raises(UserError, match=r"--out /proc/x: cannot write in /"):
        require_space(Path("/proc/x"), 1)
    with pytest.raises(UserError, match=rf"--out {tmp_path}/file: is a file, not a folder"):
        find_checkpoint(tmp_path / "file", None)


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "x.json", {"a": math.nan, "b": [1.5, math.inf], "c": {"d": (-math.inf, 2)}})
    document = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert document == {"a": None, "b": [1.5, None], "c": {"d": [None, 2]}}
