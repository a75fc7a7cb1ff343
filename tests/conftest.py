"""Fixtures for every test."""

import random
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def seed() -> Iterator[int]:
    """Seed every source of randomness that the test has loaded; the state is put back after."""
    before = random.getstate()
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield 0
    random.setstate(before)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test with this number of torch threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
