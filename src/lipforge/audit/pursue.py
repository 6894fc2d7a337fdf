"""A first attack on everything, and the rest on what came near to falling."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lipforge.attacks import Attack, Trial, margin, spelled
from lipforge.errors import InputError


@dataclass(frozen=True)
class Pursue(Attack):
    """`first` on all images, then each of `then` on those whose margin fell below `near` times the clean margin.

    With `near` 1 or more nothing is given up that moved at all; math.inf gives up nothing.
    """

    name: ClassVar[str] = "pursue"
    first: Attack
    then: tuple[Attack, ...]
    near: float = 0.3

    def __post_init__(self) -> None:
        if not self.near > 0:
            raise InputError(f"near must be above 0, got {self.near}")

    def attack(self, trial: Trial) -> None:
        """Attack, look who is near, go on with those."""
        clean = trial.clean_logits()
        self.first.attack(trial)
        with torch.no_grad():
            size = (-margin(clean, trial.y)).clamp_min(1e-12).to(trial.closest)
        close = -trial.closest < self.near * size
        worth = (close & ~trial.fooled).nonzero().squeeze(1)
        trial.given_up |= ~(close | trial.fooled)
        with trial.only(worth):
            for attack in self.then:
                if len(trial.standing()):
                    attack.attack(trial)

    def __str__(self) -> str:
        then = "; ".join(spelled(attack) for attack in self.then)
        return f"{spelled(self.first)}, then below {self.near:g} of the margin {then}"
