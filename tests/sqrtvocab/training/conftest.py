import pytest
import torch

from sqrtvocab.training import Runtime


@pytest.fixture
def runtime() -> Runtime:
    """One CPU process."""
    return Runtime(torch.device("cpu"), torch.float32, "a test", seed=0, rank=0, world_size=1)
