"""The attack of Carlini and Wagner (2017), on the margin between two logits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import margin_loss
from lipforge.attacks.pgd import PGD
from lipforge.attacks.state import AttackState, away
from lipforge.errors import InputError


@dataclass(frozen=True)
class CW(Attack):
    """For linf, projected ascent on the margin, as tables of robust accuracy use it; for l2, the Lagrangian form.

    linf: `steps` steps of `step_size` times eps from each of `restarts` random starts; the same as PGD on the margin.

    l2: minimise |x' - x|^2 + c max(z_y - max_{i != y} z_i, 0) by `steps` steps of Adam with the learning rate `lr`,
    over w with x' = (1 + tanh w) / 2, which stays in [0, 1]. The weight c starts at `initial_const` and is searched for
    by `binary_search_steps` bisections, for each image by itself. An image leaves when a point inside eps fools the
    model; it costs steps + 1 forwards and steps backwards per search until then, and one forward for the clean image.
    """

    name: ClassVar[str] = "cw"
    steps: int = 50
    restarts: int = 1
    step_size: float = 0.25
    binary_search_steps: int = 6
    initial_const: float = 1.0
    lr: float = 0.01

    def __post_init__(self) -> None:
        self._ascent()
        check_least(self, 1, "binary_search_steps")
        if not (self.initial_const > 0 and self.lr > 0):
            raise InputError(f"initial_const and lr must be above 0, got {self.initial_const} and {self.lr}")

    def attack(self, state: AttackState) -> None:
        if state.norm.box:
            self._ascent().attack(state)
            return
        if not state.norm.smooth:
            name = state.norm.name
            raise InputError(f"cw knows the norms linf and l2, got {name}; for {name} use fast, autoattack or pgd")
        weight = torch.full_like(state.margin, self.initial_const)
        low, high = torch.zeros_like(weight), torch.full_like(weight, torch.inf)
        for _ in range(self.binary_search_steps):
            at = state.robust()
            crossed = self._descend(state, at, weight[at])
            high[at] = torch.where(crossed, weight[at], high[at])
            low[at] = torch.where(crossed, low[at], weight[at])
            weight = torch.where(high.isinf(), 10 * weight, (low + high) / 2)

    def _descend(self, state: AttackState, at: Tensor, weight: Tensor) -> Tensor:
        """Adam from the clean image; which images (M,) crossed the boundary anywhere, inside eps or not."""
        rows, crossed = torch.arange(len(at), device=at.device), torch.zeros_like(at, dtype=torch.bool)
        # Just inside the open range of tanh, where its inverse is finite and its slope is not 0.
        w = torch.atanh((2 * state.x[at] - 1).clamp(-1 + 1e-5, 1 - 1e-5))
        mean, square = torch.zeros_like(w), torch.zeros_like(w)
        for number in range(1, self.steps + 1):
            if len(rows) == 0:
                return crossed
            x, x_adv = state.x[at[rows]], (1 + torch.tanh(w)) / 2
            slope = state.gradient(x_adv, at[rows], away(state, margin_loss))
            crossed[rows] |= slope.value > 0
            pull = weight[rows, None, None, None] * slope.gradient * (slope.value < 0)[:, None, None, None]
            gradient = (2 * (x_adv - x) - pull) * 2 * x_adv * (1 - x_adv)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient.square()
            change = mean / (1 - 0.9**number) / ((square / (1 - 0.999**number)).sqrt() + 1e-8)
            stays = _look(state, x_adv, at[rows], slope.logits)
            w, mean, square, rows = (w - self.lr * change)[stays], mean[stays], square[stays], rows[stays]
        if len(rows):
            x_adv = (1 + torch.tanh(w)) / 2
            logits = state.logits(x_adv, at[rows])
            crossed[rows] |= logits.argmax(dim=1) != state.y[at[rows]]
            _look(state, x_adv, at[rows], logits)
        return crossed

    def _ascent(self) -> PGD:
        return PGD(steps=self.steps, restarts=self.restarts, step_size=self.step_size, loss="margin")


def _look(state: AttackState, x_adv: Tensor, at: Tensor, logits: Tensor) -> Tensor:
    """Record the points inside eps; which images (M,) are still robust."""
    inside = state.norm.distance(x_adv - state.x[at]) <= state.eps
    state.record(x_adv[inside], at[inside], logits[inside])
    return ~state.broken[at]
