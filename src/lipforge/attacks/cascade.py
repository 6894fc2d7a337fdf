"""Attacks one after the other, each on what the ones before left standing."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.attacks.base import Attack, spelled
from lipforge.attacks.trial import Trial
from lipforge.errors import InputError


@dataclass(frozen=True)
class Cascade(Attack):
    """All of `attacks` in order; an image that one of them fools, confirmed in another batch, is not attacked again.

    Every attack starts anew from the clean image. The result has one stage for the clean images and one per attack.
    """

    name: ClassVar[str] = "cascade"
    attacks: tuple[Attack, ...]

    def __post_init__(self) -> None:
        if not self.attacks:
            raise InputError("a cascade needs at least one attack")

    def attack(self, trial: Trial) -> None:
        """Run the attacks until nothing stands."""
        trial.settle("clean")
        for attack in self.attacks:
            if len(trial.standing()) == 0:
                return
            trial.announce(spelled(attack))
            attack.attack(trial)
            trial.settle(spelled(attack))
