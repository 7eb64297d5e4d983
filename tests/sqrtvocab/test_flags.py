"""Flags: values of JSON come back as fields hold them, and wrong ones are refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import pytest

from sqrtvocab.errors import UserError
from sqrtvocab.flags import Flags, at_least, from_plain, peek_flags, positive, to_plain


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        (int, 3, 3),
        (float, 3, 3),
        (float, 0.5, 0.5),
        (bool, True, True),
        (str, "a", "a"),
        (Path, "a/b", Path("a/b")),
        (Path | None, "a/b", Path("a/b")),
        (Optional[int], None, None),  # noqa: UP045
        (Literal["a", "b"], "b", "b"),
        (Literal["a", "b"] | None, None, None),
        (tuple[str, ...], ["x", "y"], ("x", "y")),
        (tuple[str, ...], [], ()),
        (tuple[Path, ...], ["x"], (Path("x"),)),
        (Annotated[tuple[str, ...], "a note"], ["x"], ("x",)),
        (Annotated[str, "a note"] | None, "x", "x"),
    ],
)
def test_values_survive_json(kind, plain, value):
    found = from_plain(plain, kind)
    assert found == value
    assert type(found) is type(value)
    if not isinstance(value, tuple) or not value or isinstance(value[0], str):
        assert to_plain(value) == plain


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (int, 3.0),
        (int, True),
        (int, "3"),
        (int, None),
        (float, True),
        (float, "0.5"),
        (bool, 1),
        (str, 1),
        (Path, 5),
        (Path | None, 5),
        (Literal["a", "b"], "c"),
        (Literal[1, 2], True),
        (Literal["a"] | None, []),
        (tuple[str, ...], "x"),
        (tuple[str, ...], [1]),
        (Annotated[int, "a note"], "3"),
    ],
)
def test_values_of_another_type_are_refused(kind, plain):
    with pytest.raises(TypeError):
        from_plain(plain, kind)


def test_complaints_come_at_once_base_classes_first():
    @dataclass(frozen=True)
    class Sizes(Flags):
        batch_size: int = 1

        def problems(self) -> list[str]:
            return super().problems() + at_least(self, 1, "batch_size")

    @dataclass(frozen=True)
    class Rates(Sizes):
        lr: float = 1.0

        def problems(self) -> list[str]:
            return super().problems() + positive(self, "lr")

    assert Rates().lr == 1
    with pytest.raises(UserError) as error:
        Rates(batch_size=0, lr=float("nan"))
    assert (
        str(error.value) == "--batch-size must be at least 1, got 0; --lr must be a positive number, got nan"
    )


def test_a_first_look_at_the_command_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["command", "--resume", "runs/x", "--lr", "oops", "--preset"])
    assert peek_flags("--preset", "--resume", "--only") == {
        "--preset": None,
        "--resume": "runs/x",
        "--only": None,
    }
