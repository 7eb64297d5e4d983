import pytest

from sqrtvocab.training import Runtime


@pytest.fixture
def runtime(alone) -> Runtime:
    """One CPU process."""
    return alone
