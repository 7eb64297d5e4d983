"""What every test may ask for."""

import os

import pytest
import torch
from hypothesis import settings

# No deadline: machines are shared and the first call of an operator is slow. CI must not fail by chance.
settings.register_profile("sqrtvocab", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("sqrtvocab")

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
if torch.backends.mps.is_available():
    DEVICES.append("mps")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device present: the owner of a GPU tests more."""
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
