"""What attacks maximise, one number per image that grows as the margin falls, and the classes they aim at."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lipforge.errors import InputError

if TYPE_CHECKING:  # the state itself needs the margin
    from lipforge.attacks.state import AttackState

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, K) and labels (N,) to one loss per image (N,)."""

TargetedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits (N, K), labels (N,) and target classes (N,) to one loss per image (N,)."""

CANDIDATES = 9
"""How many classes, the highest by clean logit, are looked at for the nearest ones."""


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """z_y - max_{i != y} z_i: above 0 exactly where the model is right (ties aside).

    >>> margin(torch.tensor([[3.0, 1.0, 2.5]]), torch.tensor([0]))
    tensor([0.5000])
    """
    return _value(logits, y) - logits.scatter(1, y[:, None], -torch.inf).amax(dim=1)


def runner_up(logits: Tensor, y: Tensor) -> Tensor:
    """The class (N,) with the largest logit beside that of `y`."""
    return logits.scatter(1, y[:, None], -torch.inf).argmax(dim=1)


def margin_loss(logits: Tensor, y: Tensor) -> Tensor:
    """The margin with its sign turned: above 0 where the model is wrong."""
    return -margin(logits, y)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y."""
    return F.cross_entropy(logits, y, reduction="none")


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin loss over z_(1) - z_(3), the largest minus the third largest logit; needs 3 classes."""
    if logits.shape[1] < 3:
        raise InputError(f"the dlr loss needs at least 3 classes, the model has {logits.shape[1]}; use margin")
    top = logits.topk(3, dim=1).values
    return margin_loss(logits, y) / (top[:, 0] - top[:, 2] + 1e-12)


def targeted_margin_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y: above 0 where the class `target` (N,) beats the class `y`."""
    return _value(logits, target) - _value(logits, y)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted margin loss over z_(1) - (z_(3) + z_(4)) / 2; needs 4 classes."""
    if logits.shape[1] < 4:
        raise InputError(f"the targeted dlr loss needs at least 4 classes, the model has {logits.shape[1]}; use margin")
    top = logits.topk(4, dim=1).values
    return targeted_margin_loss(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)


LOSSES: Mapping[str, Loss] = MappingProxyType({"ce": cross_entropy, "margin": margin_loss, "dlr": dlr})
TARGETED_LOSSES: Mapping[str, TargetedLoss] = MappingProxyType({"margin": targeted_margin_loss, "dlr": targeted_dlr})


def find_loss(name: str) -> Loss:
    """The loss of that name."""
    if name not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {name!r}")
    return LOSSES[name]


def find_targeted_loss(name: str) -> TargetedLoss:
    """The targeted loss of that name."""
    if name not in TARGETED_LOSSES:
        raise InputError(f"a targeted loss must be one of {', '.join(TARGETED_LOSSES)}, got {name!r}")
    return TARGETED_LOSSES[name]


def targets_by_rank(state: "AttackState", count: int) -> list[Tensor]:
    """The classes (N,) of clean-logit rank 2, 3, ..., at most `count` of them and at most the classes there are."""
    ranked = state.clean_logits().argsort(dim=1, descending=True, stable=True)
    return list(ranked[:, 1 : count + 1].unbind(dim=1))


def targets_by_distance(state: "AttackState", count: int) -> list[Tensor]:
    """The classes (N,) whose boundaries look nearest from the clean image, at most `count`; found once per state."""
    return list(nearest_boundaries(state).classes[:, :count].unbind(dim=1))


class Boundaries(NamedTuple):
    """Classes (N, K), those with the nearest boundaries first, how far (N, K) these look from the clean image, and for
    the nearest two z_t - z_y (N, 2) there and its gradients (N, 2, C, H, W)."""

    classes: Tensor
    distance: Tensor
    values: Tensor
    gradients: Tensor


def nearest_boundaries(state: "AttackState") -> Boundaries:
    """The boundaries of the CANDIDATES classes with the highest clean logits.

    The distance is the difference of two logits over the dual norm of its gradient: exact on a linear model. It costs
    one forward per image and one backward per candidate, once per state; images already broken have none.
    """
    if state.nearest is None:
        classes = torch.stack(targets_by_rank(state, CANDIDATES), dim=1)
        kept, at = min(2, classes.shape[1]), state.attackable()
        distance = torch.full_like(classes, torch.inf, dtype=state.x.dtype)
        values, gradients = distance[:, :kept].clone(), state.x.new_zeros(len(classes), kept, *state.x.shape[1:])
        looks, near = [], [[distance[at, 0], values[at, 0], gradients[at, 0]] for _ in range(kept)]
        _, found = differences(state, state.x[at], at, classes[at])
        for value, gradient in found:
            looks.append((value.abs() / state.norm.dual_size(gradient).clamp_min(1e-12)).to(distance))
            new: list[Tensor] = [looks[-1], value, gradient]
            for slot, old in enumerate(near):  # all gradients at once would take too much memory
                nearer = new[0] < old[0]
                near[slot], new = _chosen(nearer, new, old), _chosen(nearer, old, new)
        distance[at], order = torch.stack(looks, dim=1).sort(dim=1, stable=True)
        classes[at] = classes[at].gather(1, order)
        for slot, (_, value, gradient) in enumerate(near):
            values[at, slot], gradients[at, slot] = value.to(values), gradient.to(gradients)
        state.nearest = Boundaries(classes, distance, values, gradients)
    return state.nearest


def _chosen(rows: Tensor, yes: list[Tensor], no: list[Tensor]) -> list[Tensor]:
    """Of each pair of tensors the rows of the first where `rows` (M,) is true, and of the second elsewhere."""
    return [torch.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(yes, no, strict=True)]


def differences(
    state: "AttackState", point: Tensor, at: Tensor, classes: Tensor
) -> tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]:
    """The logits, and for each column of `classes` (M, C) the difference z_t - z_y (M,) and its gradient."""
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = state.ask(point, at)
        values = logits.gather(1, classes) - logits.gather(1, state.y[at][:, None])
    state.forwards[at] += 1
    state.backwards[at] += classes.shape[1]
    last = classes.shape[1] - 1
    found = (
        (values[:, column].detach(), torch.autograd.grad(values[:, column].sum(), point, retain_graph=column < last)[0])
        for column in range(classes.shape[1])
    )
    return logits.detach(), found


def _value(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None]).squeeze(1)
