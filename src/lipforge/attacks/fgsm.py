"""The fast gradient sign method: one step along the gradient."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lipforge.attacks.base import checked_ids, input_gradient
from lipforge.attacks.losses import find_loss
from lipforge.attacks.norms import project, random_start, steepest_step
from lipforge.errors import InputError
from lipforge.types import Classifier, Threat


@dataclass(frozen=True)
class FGSM:
    """One steepest step of `step` times eps (Goodfellow et al. 2015); optimal on a linear model with step 1.

    With `random` it starts at a random point of the ball (FGSM-RS, Wong et al. 2020, who take step 1.25).
    """

    name: ClassVar[str] = "fgsm"
    step: float = 1.0
    random: bool = False
    loss: str = "ce"

    def __post_init__(self) -> None:
        find_loss(self.loss)
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
        """The images after one step, inside the threat."""
        ids = checked_ids(model, x, y, sample_ids)
        start = random_start(x, threat, seed=seed, sample_ids=ids, stream="fgsm-start") if self.random else x
        gradient, _ = input_gradient(model, start, y, find_loss(self.loss))
        return project(start + steepest_step(gradient, threat, self.step * threat.eps), x, threat)
