"""docs/api.md is what the docstrings say."""

from scripts.write_api import PAGE, page, prose


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run `python scripts/write_api.py`"


def test_docstrings_become_markdown():
    text = """One line about :class:`~sqrtvocab.Head` and ``x``.

Args:
    a, b: see :meth:`Head.topk`,
        and more.

Raises:
    ValueError: never.
"""
    assert prose(text).splitlines() == [
        "One line about `Head` and `x`.",
        "",
        "Arguments:",
        "",
        "- `a, b`: see `topk`, and more.",
        "",
        "Raises:",
        "",
        "- `ValueError`: never.",
    ]
