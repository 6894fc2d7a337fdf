from typing import Any, NamedTuple

import pytest

import lipforge.evaluation.estimates
import lipforge.progress
import lipforge.runs.workers


class Heard(NamedTuple):
    """What one piece of work said of itself; `status` is shown by its `str`."""

    label: str
    total: int | None
    done: int
    status: object


@pytest.fixture
def heard(monkeypatch) -> list[Heard]:
    """Every piece of work that showed progress, in order; nothing is drawn."""
    said: list[Heard] = []
    real = lipforge.progress.progress

    def listening(
        label: str, total: int | None, *, done: int = 0, show: bool | None = None, status: object = ""
    ) -> Any:
        said.append(Heard(label, total, done, status))
        return real(label, total, done=done, show_progress=False, status=status)

    for module in (lipforge.runs.workers, lipforge.evaluation.estimates):
        monkeypatch.setattr(module, "progress", listening)
    return said
