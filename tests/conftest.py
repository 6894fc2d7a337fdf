"""What every test gets: the same examples, a clock of its own and the same random state, which it leaves as it was."""

from typing import Any, NamedTuple

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
    """Seed torch, and put its random state back, so that no test depends on another; the default dtype must stay."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)
    assert torch.get_default_dtype() == dtype


class Heard(NamedTuple):
    """What one piece of work said of itself; `status` is shown by its `str`."""

    label: str
    total: int | None
    done: int
    status: object


@pytest.fixture
def heard(monkeypatch) -> list[Heard]:
    """Every piece of work that showed progress, in order; nothing is drawn."""
    import lipforge.evaluation.estimates
    import lipforge.runs.workers

    said: list[Heard] = []
    real = lipforge.progress.progress

    def listening(
        label: str, total: int | None, *, done: int = 0, show: bool | None = None, status: object = ""
    ) -> Any:
        said.append(Heard(label, total, done, status))
        return real(label, total, done=done, show=False, status=status)

    for module in (lipforge.runs.workers, lipforge.evaluation.estimates):
        monkeypatch.setattr(module, "progress", listening)
    return said
