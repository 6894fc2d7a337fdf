"""Projected gradient ascent with restarts; images leave the batch the moment they are fooled."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import checked_ids, input_gradient, is_fooled
from lipforge.attacks.losses import Loss, find_loss
from lipforge.attacks.norms import project, random_start, steepest_step
from lipforge.errors import InputError
from lipforge.types import Classifier, Threat


@dataclass(frozen=True)
class PGD:
    """Steepest steps of `step` times eps, projected after each (Madry et al. 2018).

    An image that is fooled is returned as it was at that moment and costs nothing more; the others are returned as
    the last restart left them. Each restart starts at another random point, or all at `x` without `random`.
    """

    name: ClassVar[str] = "pgd"
    steps: int = 20
    restarts: int = 1
    step: float = 0.25
    random: bool = True
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
        if self.steps < 1 or self.restarts < 1:
            raise InputError(f"steps and restarts must be at least 1, got {self.steps} and {self.restarts}")
        if self.restarts > 1 and not self.random:
            raise InputError("restarts without a random start would all be the same; set random=true or restarts=1")
        if not self.step > 0:
            raise InputError(f"step must be above 0 (a multiple of eps), got {self.step}")

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """The images after the attack, inside the threat."""
        ids = checked_ids(model, x, y, sample_ids)
        result = x.detach().clone()
        left = torch.arange(len(x), device=x.device)
        for restart in range(self.restarts):
            if len(left) == 0:
                break
            start = x[left]
            if self.random:
                start = random_start(
                    start, threat, seed=seed, sample_ids=ids[left], stream="pgd-start", counter=restart
                )
            result[left], fooled = ascend(
                model,
                start,
                x[left],
                y[left],
                threat=threat,
                steps=self.steps,
                step_size=self.step * threat.eps,
                loss=find_loss(self.loss),
            )
            left = left[~fooled]
        return result


def ascend(
    model: Classifier, start: Tensor, x: Tensor, y: Tensor, *, threat: Threat, steps: int, step_size: float, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Where `steps` projected steps from `start` lead, and which images are fooled there; a fooled image stops."""
    result, fooled = start.detach().clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    left = torch.arange(len(x), device=x.device)
    x_adv = result
    for _ in range(steps):
        gradient, logits = input_gradient(model, x_adv, y[left], loss)
        standing = logits.argmax(dim=1) == y[left]
        fooled[left[~standing]] = True
        left, x_adv, gradient = left[standing], x_adv[standing], gradient[standing]
        if len(left) == 0:
            return result, fooled
        x_adv = project(x_adv + steepest_step(gradient, threat, step_size), x[left], threat)
        result[left] = x_adv
    fooled[left] = is_fooled(model, x_adv, y[left])
    return result, fooled
