"""The attack of Carlini and Wagner, on the margin between two logits."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.attacks.base import Attack
from lipforge.attacks.pgd import PGD
from lipforge.attacks.trial import Trial
from lipforge.errors import InputError


@dataclass(frozen=True)
class CW(Attack):
    """For linf, projected ascent on the margin: what tables of robust accuracy call CW."""

    name: ClassVar[str] = "cw"
    steps: int = 50
    restarts: int = 1
    step: float = 0.25

    def __post_init__(self) -> None:
        self._ascent()

    def attack(self, trial: Trial) -> None:
        """Ascend on the margin."""
        if trial.threat.norm != "linf":
            raise InputError(f"cw knows the norm linf, got {trial.threat.norm}")
        self._ascent().attack(trial)

    def _ascent(self) -> PGD:
        return PGD(steps=self.steps, restarts=self.restarts, step=self.step, loss="margin")
