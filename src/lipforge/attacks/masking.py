"""Do the gradients predict the model? Where they do not, an attack that follows them says little.

On a robust image an honest network is nearly linear: a step along the gradient changes the difference of two logits by
what the gradient predicts, at every length up to eps, and so does a step in those entries alone whose gradients are
small. Defences that hide gradients fail one of the two, or have no gradient at all in many entries: noise in the input,
gradients that are wrong or 0, masks that jump, and staircases, whose steep entries predict too much and whose flat ones
too little.

Logits can mislead even where their gradients are true, if they say nothing of the class that is about to change: a
network's class with other logits around it, or logits that are nearly constant up to the boundary. On the way to a
point far away, the margin of an honest network falls before its class changes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.folding import Autocast
from lipforge.attacks.losses import margin, targeted_margin_loss, targets_by_rank
from lipforge.attacks.state import AttackState, Goal, toward
from lipforge.types import Classifier, Threat

SHORT, LONG = 4 / 3, 3.0
"""By which factor a step may differ from its prediction: up to a quarter of eps, and at eps.

Set on robust and natural nets and broken defences around them, on training images; docs/attacks.md has the figures.
"""

ZEROS = 0.25
"""Share of an image's entries that may have a gradient of exactly 0."""

STEPS = ((1 / 16, SHORT), (1 / 4, SHORT), (1.0, LONG))

NEAR, KEPT = 63 / 64, 0.7
"""A margin must have fallen below KEPT of what it was before at this share of the way to the change of class."""

BISECTIONS = 9


class Masked(NamedTuple):
    """Which robust images (N,) have gradients that do not predict the model, and which of them predict too much."""

    any: Tensor
    too_much: Tensor


def masked_gradients(state: AttackState) -> Masked:
    """Whether the gradients at each robust image, and at a random point near it, predict the model, and whether its
    margin announces a change of class.

    A robust image costs 22 forwards, or 34 where the first line does not clear it, and 2 backwards, once per state.
    """
    if state.tested is not None:
        return Masked(*state.tested)
    found, at = Masked(torch.zeros_like(state.broken), torch.zeros_like(state.broken)), state.robust()
    if len(at) == 0:
        return found
    state.tested = found
    goal = toward(state, targeted_margin_loss, targets_by_rank(state, 1)[0])
    folded = state.folded
    if isinstance(folded, Autocast):  # what half precision rounds is not the model's
        state.folded = folded.classifier
    near = state.norm.random_start(
        state.x[at], state.eps, seed=state.seed, sample_ids=state.ids[at], stream="masked-gradients"
    )
    for point in (state.x[at], near):
        too_much, too_little = mispredicted(state, point, at, goal)
        found.any[at] |= too_much | too_little
        found.too_much[at] |= too_much
    at = at[~found.any[at]]
    found.any[at] = unannounced(state, at)
    state.folded = folded
    return found


def masked_images(model: Classifier, x: Tensor, y: Tensor, *, threat: Threat, seed: int, sample_ids: Tensor) -> Tensor:
    """Which images (N,) the model gets right although its gradients do not predict it: see `masked_gradients`."""
    state = AttackState(model, x, y, threat=threat, seed=seed, sample_ids=sample_ids)
    state.clean_logits()
    return masked_gradients(state).any


def mispredicted(state: AttackState, point: Tensor, at: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """At which points (M,) the goal's gradient predicts too much of a rise, and at which too little."""
    slope = state.gradient(point, at, goal)
    small = slope.gradient * _small_entries(slope.gradient)
    too_much, too_little = torch.zeros(2, len(at), dtype=torch.bool, device=at.device)
    for direction, step, band in (*((slope.gradient, *each) for each in STEPS), (small, *STEPS[-1])):
        moved = (point + state.norm.steepest_step(direction, step * state.eps)).clamp(0.0, 1.0)
        predicted = (slope.gradient * (moved - point)).flatten(1).sum(dim=1)
        rise = goal(state.logits(moved, at), at) - slope.value
        told = (moved != point).flatten(1).any(dim=1) | (direction is not small)  # where no entry is small, nothing is
        too_much |= ~(rise > predicted / band) & told
        too_little |= ~(rise < predicted * band) & told
    # A signed step leaves entries without a gradient where they are, so that nothing above tells what they could do.
    return too_much, too_little | ((slope.gradient == 0).flatten(1).float().mean(dim=1) > ZEROS)


def unannounced(state: AttackState, at: Tensor) -> Tensor:
    """For which images (M,) the margin does not announce a change of class, on the way to the negative of the image,
    and on the way to noise where the first does not clear it. Where the class never changes, nothing is found."""
    x = state.x[at]
    noise = rng.uniform(state.seed, state.ids[at], stream="far-point", shape=x.shape[1:]).to(x)
    found = torch.zeros(len(at), dtype=torch.bool, device=at.device)
    cleared = found.clone()
    for far in (1 - x, noise):
        left = (~cleared).nonzero().squeeze(1)
        if len(left):
            changes, kept = _margin_on_the_way(state, x[left], far[left], at[left])
            cleared[left] = changes & (kept < KEPT)
            found[left] |= changes
    return found & ~cleared


def _margin_on_the_way(state: AttackState, x: Tensor, far: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Whether (M,) the class changes on the way from `x` to `far`, and the margin shortly before as a share of the
    largest of those at `x` and half-way."""
    y = state.y[at]
    changes = state.logits(far, at).argmax(dim=1) != y
    below, above = torch.zeros_like(state.margin[at]), torch.ones_like(state.margin[at])

    def logits(share: Tensor) -> Tensor:
        return state.logits(x + (far - x) * share[:, None, None, None], at)

    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        changed = logits(middle).argmax(dim=1) != y
        below, above = torch.where(changed, below, middle), torch.where(changed, middle, above)
    before = torch.maximum(margin(state.clean_logits()[at], y), margin(logits(below / 2), y))
    return changes, margin(logits(NEAR * below), y) / before


def _small_entries(gradient: Tensor) -> Tensor:
    """The half of an image's entries with the smaller gradients, leaving out those that are exactly 0."""
    size = gradient.abs()
    middle = torch.where(size > 0, size, torch.nan).flatten(1).nanmedian(dim=1).values
    return (size <= middle[:, None, None, None]) & (size > 0)
