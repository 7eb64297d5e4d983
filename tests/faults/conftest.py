"""What the tests of faults share: loops over all the places where a command can be disturbed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from injection import KILLED, Disturbed, contents

SECONDS = 60  # nothing here runs longer than a second or two: what does is a hang


@pytest.fixture
def operations(forked, tmp_path: Path) -> Callable[..., list[str]]:
    """`operations(main, argv, inside)`: the file operations of an undisturbed run, which must succeed."""

    def count(main, argv, inside: Path) -> list[str]:
        log = tmp_path / "operations.json"
        result = forked(Disturbed(main, inside, log=log), argv, tmp_path, {}).wait(SECONDS)
        assert result.code == 0, result.err
        return json.loads(log.read_text())

    return count


@pytest.fixture
def kill_everywhere(forked, operations, tmp_path: Path) -> Callable[..., int]:
    """`kill_everywhere(main, argv, inside)`: for each file operation (or the `sample` of them, every so many)
    begin with what `inside` holds now, kill the command there, run it again, and compare with a run that was
    left alone. Returns how many operations were tried."""

    def try_all(main, argv, inside: Path, every: int = 1) -> int:
        before = tmp_path / "before"
        shutil.copytree(inside, before, symlinks=True)

        def restore() -> None:
            shutil.rmtree(inside)
            shutil.copytree(before, inside, symlinks=True)

        steps = operations(main, argv, inside)
        expected = contents(inside)
        tried = range(0, len(steps), every)
        for at in tried:
            restore()
            killed = forked(Disturbed(main, inside, at, "kill"), argv, tmp_path, {}).wait(SECONDS)
            assert killed.code == KILLED, (at, steps[at], killed)
            again = forked(main, argv, tmp_path, {}).wait(SECONDS)
            assert (again.code, again.err) == (0, ""), f"killed at {at}, {steps[at]}: {again.err}"
            left = contents(inside)
            assert left == expected, f"killed at {at}, {steps[at]}: {_difference(left, expected)}"
        return len(tried)

    return try_all


def _difference(left: dict[str, bytes], expected: dict[str, bytes]) -> str:
    return ", ".join(
        name for name in sorted(left.keys() | expected.keys()) if left.get(name) != expected.get(name)
    )
