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
        """Run the rounds; the trial remembers which images were given up before the last.

        b never rises, so the rounds that it has earned an image are all going to be run: they are run side by side.
        """
        size = clean_margin(trial).clamp_min(1e-12)
        done, gained = torch.zeros_like(trial.y), torch.zeros_like(size)
        worth = trial.standing()
        while True:
            due = self._due(-trial.closest[worth] / size[worth], done[worth], gained[worth])
            goes_on = due > done[worth]
            trial.given_up[worth] = ~goes_on & (due < self.rounds)
            worth, due = worth[goes_on], due[goes_on]
            if len(worth) == 0:
                return
            with trial.only(worth):
                targets = torch.stack(targets_by_distance(trial, self.targets), dim=1)
            for part in _parts((due - done[worth]) * targets.shape[1], len(trial.x)):
                at = worth[part]
                gained[at] = self._side_by_side(trial, at, targets[at], done[at], due[part]) / size[at]
            done[worth] = due
            worth = worth[~trial.fooled[worth]]

    def _due(self, left: Tensor, done: Tensor, gained: Tensor) -> Tensor:
        """How many rounds (M,) images have earned, by what is left of their margin and what the last round gained."""
        needed = self.near / 2.0 ** torch.arange(self.rounds, dtype=left.dtype, device=left.device)
        earned = (left[:, None] < needed).sum(dim=1)
        return torch.maximum(earned, done + (gained >= self.gain)).clamp_max(self.rounds)

    def _side_by_side(self, trial: Trial, at: Tensor, targets: Tensor, done: Tensor, due: Tensor) -> Tensor:
        """Run rounds `done` (M,) to `due` (M,) of images toward `targets` (M, T): what (M,) the last round gained."""
        number = torch.arange(self.rounds, device=at.device)
        image, number = ((number >= done[:, None]) & (number < due[:, None])).nonzero().unbind(dim=1)
        image, number = (each.repeat_interleave(targets.shape[1]) for each in (image, number))
        rows, last = at[image], number == due[image] - 1
        branch = trial.branch(rows)
        aims = targets.repeat_interleave(due - done, dim=0).flatten()
        goal = toward(branch, targeted_margin, aims)
        climb(branch, goal, Schedule(self.steps, rho=0.75), stream="rounds", counter=number)
        before = trial.closest.scatter_reduce(0, rows[~last], branch.closest[~last], "amax")
        trial.merge(branch, rows)
        return trial.closest[at] - before[at]


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


def _parts(runs: Tensor, most: int) -> list[Tensor]:
    """The positions of `runs` (M,) in parts: up to `most` runs together, or one image that takes more by itself."""
    parts: list[list[int]] = [[]]
    room = most
    for position, count in enumerate(runs.tolist()):
        if count > room and parts[-1]:
            parts.append([])
            room = most
        parts[-1].append(position)
        room -= count
    return [torch.tensor(part, device=runs.device) for part in parts]


@torch.no_grad()
def clean_margin(trial: Trial) -> Tensor:
    """z_y minus the largest other logit (N,) on the clean images: above 0 where the model is right."""
    return -margin(trial.clean_logits(), trial.y)
