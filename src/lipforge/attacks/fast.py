"""The parts of autoattack("fast") that have a stopping rule: rounds of restarts, and the probe for masked gradients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.apgd import Schedule, climb
from lipforge.attacks.base import Attack
from lipforge.attacks.cascade import Cascade
from lipforge.attacks.checks import PROBE
from lipforge.attacks.losses import margin, targeted_margin
from lipforge.attacks.square import Square
from lipforge.attacks.standard import NO_FAB, standard_attacks
from lipforge.attacks.targets import targets_by_distance
from lipforge.attacks.trial import Trial, toward
from lipforge.errors import InputError


@dataclass(frozen=True)
class Rounds(Attack):
    """Rounds of targeted APGD from new starts toward the `targets` nearest classes, on the images worth a round.

    The stopping rule, for each image by itself: let b be the smallest margin that anything has found for it, as a
    share of its clean margin. Round r = 1, 2, ..., `rounds` is run if b is below `near` / 2^(r - 1), or if the round
    before lowered b by at least `gain`. The first round it does not get gives the image up: budget goes to the images
    that are close, twice as close for each further round, and to those that are still coming closer.
    """

    name: ClassVar[str] = "rounds"
    steps: int = 50
    targets: int = 2
    rounds: int = 4
    gain: float = 0.02
    near: float = 0.15

    def __post_init__(self) -> None:
        if self.steps < 1 or self.targets < 1 or self.rounds < 1:
            raise InputError(
                f"steps, targets and rounds must be at least 1, got {self.steps}, {self.targets} and {self.rounds}"
            )
        if not (self.gain > 0 and self.near >= 0):
            raise InputError(f"gain must be above 0 and near at least 0, got {self.gain} and {self.near}")

    def attack(self, trial: Trial) -> None:
        """Run the rounds; the trial remembers which images were given up before the last."""
        size = clean_margin(trial).clamp_min(1e-12)
        worth = trial.standing()
        gained = torch.zeros_like(size)
        for number in range(self.rounds):
            left = -trial.closest[worth] / size[worth]
            promising = (left < self.near / 2**number) | (gained[worth] >= self.gain)
            trial.given_up[worth] = ~promising
            worth = worth[promising]
            before = trial.closest[worth]
            with trial.only(worth):
                self._round(trial, number)
            gained[worth] = (trial.closest[worth] - before) / size[worth]
            worth = worth[~trial.fooled[worth]]

    def _round(self, trial: Trial, number: int) -> None:
        at = trial.standing()
        if len(at) == 0:
            return
        targets = targets_by_distance(trial, self.targets)
        rows = at.repeat(len(targets))
        branch, target = trial.branch(rows), torch.cat([target[at] for target in targets])
        goal = toward(branch, targeted_margin, target)
        climb(branch, goal, Schedule(self.steps, rho=0.75), stream="rounds", counter=number)
        trial.merge(branch, rows)


@dataclass(frozen=True)
class Escalate(Attack):
    """The standard cascade on every image that still stands and on which the gradient attacks look suspicious.

    Suspicious is an image with a gradient of exactly 0 somewhere, one on which the gradient attacks never lowered the
    margin at all, and one on which a Square of `queries` queries gets lower than all of them did. One that fooled only
    the stand-in goes through the standard cascade on the model itself.
    """

    name: ClassVar[str] = "escalate"
    queries: int = 20

    def __post_init__(self) -> None:
        Square(queries=self.queries)

    def attack(self, trial: Trial) -> None:
        """Probe what stands; escalate the suspicious images."""
        clean = -clean_margin(trial)
        by_gradient = trial.closest.clone()
        Square(queries=self.queries).attack(trial)
        trial.settle(PROBE)
        suspicious = trial.zero_gradient | (by_gradient <= clean) | (trial.closest > by_gradient)
        standard = Cascade(standard_attacks(trial.clean_logits().shape[1], trial.threat.norm))
        searched = settle_disputes(trial, standard)
        at = (suspicious & ~searched & ~trial.fooled).nonzero().squeeze(1)
        if trial.threat.norm == "l1" and (len(at) or searched.any()):
            trial.notes.append(NO_FAB)
        trial.given_up[at] = False
        if len(at):
            trial.notes.append(
                f"{len(at)} of {len(trial.x)} images looked masked and went through the standard cascade"
            )
            with trial.only(at):
                standard.attack(trial)


def settle_disputes(trial: Trial, attack: Attack) -> Tensor:
    """Run the attack, on the model itself, on what stands although its stand-in was fooled: on which images (N,)."""
    disputed = trial.disputed & ~trial.fooled & (trial.quick is not trial.model)
    at = disputed.nonzero().squeeze(1)
    if len(at) == 0:
        return disputed
    trial.given_up[at] = False
    trial.notes.append(
        f"{len(at)} of {len(trial.x)} images fooled only the model's stand-in and were attacked on the model itself"
    )
    quick, trial.quick = trial.quick, trial.model
    with trial.only(at):
        attack.attack(trial)
    trial.quick = quick
    trial.disputed[at] = False
    return disputed


@torch.no_grad()
def clean_margin(trial: Trial) -> Tensor:
    """z_y minus the largest other logit (N,) on the clean images: above 0 where the model is right."""
    return -margin(trial.clean_logits(), trial.y)
