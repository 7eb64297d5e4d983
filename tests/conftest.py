"""What every test may ask for."""

import pytest
import torch

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
