"""What every test gets: the same examples, a clock of its own and torch's random state as it was."""

import pytest
import torch
from hypothesis import settings

import lipforge.progress

# No deadline: a busy machine must not fail a test. Derandomised: the same examples on every machine.
settings.register_profile("lipforge", deadline=None, derandomize=True)
settings.load_profile("lipforge")


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch):
    """Each test is a call of its own to the lines of progress, however little time has passed since the last."""
    monkeypatch.setattr(lipforge.progress, "_clock", lipforge.progress._Clock())


@pytest.fixture(autouse=True)
def _same_world_after_each_test():
    """Put torch's global random state back, so that no test depends on another; the default dtype must not change."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    yield
    torch.set_rng_state(state)
    assert torch.get_default_dtype() == dtype
