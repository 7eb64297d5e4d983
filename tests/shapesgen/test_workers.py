"""Several processes for many tasks, this one among them."""

import os

import pytest

from shapesgen.workers import run


def whoever(task, report):
    report(1, 10)
    return task, os.getpid()


def not_the_first(task, report):
    if task == 0:
        raise ValueError("the first task")
    report(1, 10)


def test_this_process_works_too():
    results = run(whoever, range(12), workers=2, images=12, progress=False, joins=True)
    assert [task for task, _ in results] == list(range(12))
    assert results[-1][1] == os.getpid()
    assert len({worker for _, worker in results}) == 2


def test_what_goes_wrong_elsewhere_is_raised_here():
    with pytest.raises(ValueError, match="the first task"):
        run(not_the_first, range(12), workers=2, images=12, progress=False, joins=True)
