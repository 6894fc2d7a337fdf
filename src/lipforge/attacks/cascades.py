"""AutoAttack (Croce and Hein 2020), and our own cascades, never called AutoAttack: `fast`, which is cheaper, and
`minimum-norm`, which looks for the nearest point that fools the model.

AutoAttack has the attacks, the order and the budgets of the reference, without its wasted work. What differs, and why:
images leave inside every attack when they are broken; clean logits are computed once; FAB stops inside eps and asks the
model once per step; random numbers depend on the image's id, not on the batch; Square's windows reach the last row and
column and are drawn for each image by itself; APGD compares its first step with its start; a random model's logits are
the mean over the EOT iterations, not the last of them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks import norms
from lipforge.attacks.apgd import APGD, Schedule, TargetedAPGD, climb
from lipforge.attacks.base import Attack, Cascade, check_least, spelled
from lipforge.attacks.boundary import Boundary
from lipforge.attacks.checks import PROBE, class_notes, model_notes
from lipforge.attacks.fab import FAB
from lipforge.attacks.folding import Autocast, Precision, check_precision, prepare
from lipforge.attacks.losses import margin, nearest_boundaries, runner_up, targeted_margin_loss
from lipforge.attacks.masking import masked_gradients
from lipforge.attacks.minimum import FMN
from lipforge.attacks.queries import Prepared
from lipforge.attacks.square import Square
from lipforge.attacks.state import AttackState, Goal, toward
from lipforge.errors import InputError
from lipforge.results import Note
from lipforge.types import Classifier, Norm

Version = Literal["standard", "plus", "rand"]

TARGETS = 9

SMOOTHED = APGD(steps=20, loss="margin", eot_iter=8, noise=0.5)
BLACK_BOX = Square(queries=1000, rescale=True)
"""What images with masked gradients get: the first gets past gradients that change from point to point."""
WALK = Boundary(steps=5, bisections=6)
"""What a sample of robust images gets: it gets past logits that say nothing at the images themselves."""


class _Folding(Attack):
    """A cascade that fits the model's number of classes and searches on a folded copy, unless it is "rand"."""

    looks_at_outputs: ClassVar[bool] = True
    version: str = "fast"
    fold: bool
    precision: Precision

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.precision != "float32" and not self.fold:
            raise InputError(f"precision {self.precision} is that of a folded copy; leave fold at true")

    def cascade(self, classes: int, norm: Norm = "linf") -> Cascade:
        """The attacks for a model with that many classes."""
        raise NotImplementedError

    def prepared(self, model: Classifier, images: Tensor) -> Classifier:
        if isinstance(model, Prepared) or not self._folds():
            return model
        return prepare(model, images, precision=self.precision)

    def attack(self, state: AttackState) -> None:
        classes = state.clean_logits().shape[1]
        state.notes += model_notes(state, random_expected=self.version == "rand")
        if self.version in ("standard", "plus") or (classes < 3 and self.version != "minimum"):
            state.notes += class_notes(classes, targets=TARGETS)
        if self._folds():
            state.fold(self.precision)
        cascade = self.cascade(classes, state.threat.norm)
        cascade.attack(state)
        attack_folded_only(state, cascade, cascade)
        if self.version not in ("fast", "rand"):  # fast has looked already
            state.masked = masked_gradients(state).any

    def _folds(self) -> bool:
        return self.fold and self.version != "rand"


@dataclass(frozen=True)
class AutoAttack(_Folding):
    """The cascade of a version of AutoAttack, fitted to the model's number of classes, with all of its warnings.

    With `fold` it searches on a folded copy where there is one (see `prepare`), under autocast if `precision` says so,
    made for each batch unless the model is `Prepared` already; the version "rand" does not fold.
    """

    name: ClassVar[str] = "autoattack"
    version: str = "standard"
    fold: bool = True
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.version not in get_args(Version):
            hint = ": that cascade is called fast now; use fast(), or --attack fast" if self.version == "fast" else ""
            raise InputError(f"version must be one of {', '.join(get_args(Version))}, got {self.version!r}{hint}")
        super().__post_init__()

    def cascade(self, classes: int, norm: Norm = "linf") -> Cascade:
        """The attacks for a model with that many classes.

        >>> [attack.name for attack in AutoAttack().cascade(10).attacks]
        ['apgd', 'apgd-t', 'fab', 'square']
        """
        dlr = "dlr" if classes >= 3 else "margin"
        if self.version == "standard":
            return Cascade(standard_attacks(classes, norm))
        if self.version == "rand":
            return Cascade((APGD(eot_iter=20), APGD(loss=dlr, eot_iter=20)))
        _, targeted, fab, square = standard_attacks(classes)  # nine targets in every norm
        untargeted = (APGD(restarts=5), APGD(loss=dlr, restarts=5), FAB(targets=0, restarts=5))
        return Cascade((*untargeted, square, targeted, fab))


def autoattack(version: Version = "standard", *, fold: bool = True, precision: Precision = "float32") -> AutoAttack:
    """AutoAttack in the version "standard", "plus" (more restarts) or "rand" (for models with random outputs)."""
    return AutoAttack(version, fold, precision)


def standard_attacks(classes: int, norm: Norm = "linf") -> tuple[Attack, ...]:
    """APGD-CE, APGD-T, FAB-T and Square, with the losses and targets that a model with that many classes allows.

    For l1, as in the reference, APGD-CE has five restarts and APGD-T five targets.
    """
    if classes < 2:
        raise InputError(f"the model must have at least 2 classes, got {classes}")
    restarts, most = (5, 5) if norms.of(norm).sparse else (1, TARGETS)
    targeted = TargetedAPGD(targets=min(most, classes - 1), loss="dlr" if classes >= 4 else "margin")
    return APGD(restarts=restarts), targeted, FAB(targets=min(TARGETS, classes - 1)), Square()


@dataclass(frozen=True)
class Fast(_Folding):
    """Our own cascade, from cheap to dear, with a stopping rule; not AutoAttack, and never called so.

    10 APGD steps on the margin, 20 toward each of the two `Nearest` classes that look near enough, then `Restarts` of
    50 on the images that its rule finds worth it; the others are in the result's `early_stopped`. `Escalate` then
    attacks images with masked gradients, and other suspicious ones, again. `fold` and `precision` are as in AutoAttack.
    """

    name: ClassVar[str] = "fast"
    fold: bool = True
    precision: Precision = "float32"

    def cascade(self, classes: int, norm: Norm = "linf") -> Cascade:
        return Cascade((*gradient_attacks(min(2, classes - 1)), Escalate()))


def gradient_attacks(targets: int = 2) -> tuple[Attack, ...]:
    """What `fast` does before it looks for masked gradients."""
    return APGD(steps=10, loss="margin"), Nearest(targets=targets), Restarts()


def fast(*, fold: bool = True, precision: Precision = "float32") -> Fast:
    """Our own cascade of attacks, cheaper than AutoAttack: see `Fast`."""
    return Fast(fold, precision)


@dataclass(frozen=True)
class MinimumNorm(_Folding):
    """Our own cascade for curves: FMN away from the true class, then toward the nearest other class.

    The second walk stays nearer than what the first one found. In a sparse norm, where each step moves few entries,
    walks are longer. At the end it looks for masked gradients on the images that are still robust. `fold` and
    `precision` are as in AutoAttack.
    """

    name: ClassVar[str] = "minimum-norm"
    version: ClassVar[str] = "minimum"  # type: ignore[misc]  # no setting here
    fold: bool = True
    precision: Precision = "float32"

    def cascade(self, classes: int, norm: Norm = "linf") -> Cascade:
        if norms.of(norm).sparse:
            return Cascade((FMN(steps=80, step_size=0.5), FMN(steps=60, step_size=0.5, targets=1)))
        return Cascade((FMN(steps=40), FMN(steps=25, targets=1)))


@dataclass(frozen=True)
class Nearest(Attack):
    """Targeted APGD toward those of the `targets` nearest classes whose boundaries look nearer than `within` times eps.

    How near it looks is judged at the clean image, by the gradient (`nearest_boundaries`) and by one step of length eps
    along it, and whichever says nearer is believed. Images with masked gradients get a run toward all `targets`.
    """

    name: ClassVar[str] = "nearest"
    steps: int = 20
    targets: int = 2
    within: float = 1.3

    def __post_init__(self) -> None:
        check_least(self, 1, "steps", "targets", "within")

    def attack(self, state: AttackState) -> None:
        if len(state.robust()) == 0:
            return
        masked, schedule = masked_gradients(state).any, Schedule(self.steps, rho=0.75)
        near = nearest_boundaries(state)
        for number in range(min(self.targets, near.classes.shape[1])):
            goal = toward(state, targeted_margin_loss, near.classes[:, number])
            worth = masked | (near.distance[:, number] < self.within * state.eps)
            at = (~worth & ~state.broken).nonzero().squeeze(1)
            if len(at):
                if number < near.values.shape[1]:
                    before, gradient = near.values[at, number], near.gradients[at, number]
                else:
                    gradient, before, _ = state.gradient(state.x[at], at, goal)
                worth[at] = _distance_by_step(state, at, goal, before, gradient) < self.within * state.eps
            with state.only(worth.nonzero().squeeze(1)):
                climb(state, goal, schedule, stream="nearest", counter=number)


def _distance_by_step(state: AttackState, at: Tensor, goal: Goal, before: Tensor, gradient: Tensor) -> Tensor:
    """How far (M,) the goal's boundary looks from clean images by what a step of length eps along its gradient changes:
    nearer than the gradient alone says where the model gets steeper. The step may break an image, too."""
    state.note_zeros(at, gradient)
    x = state.x[at]
    moved = state.norm.project(x + state.norm.steepest_step(gradient, state.eps), x, state.eps)
    logits = state.logits(moved, at)
    state.record(moved, at, logits)
    return -before * state.eps / (goal(logits, at) - before).clamp_min(1e-12)


@dataclass(frozen=True)
class Restarts(Attack):
    """Rounds of targeted APGD from new starts toward the class that came closest, on the images worth a round.

    That class is the runner-up at the strongest point found so far. The stopping rule, for each image by itself: let b
    be the smallest margin that anything has found for it, as a share of its clean margin. Round r = 1, 2, ...,
    `rounds` is run if b is below `near` / 2^(r - 1), or if the round before lowered b by at least `gain`. The image is
    early-stopped at the first round it does not get: budget goes to the images that are close, twice as close for each
    further round, and to those that are still coming closer.
    """

    name: ClassVar[str] = "restarts"
    steps: int = 50
    rounds: int = 4
    gain: float = 0.02
    near: float = 0.15

    def __post_init__(self) -> None:
        check_least(self, 1, "steps", "rounds")
        if not (self.gain > 0 and self.near >= 0):
            raise InputError(f"gain must be above 0 and near at least 0, got {self.gain} and {self.near}")

    def attack(self, state: AttackState) -> None:
        """Run the rounds; the state remembers which images were early-stopped before the last.

        b never rises, so the rounds that it has earned an image are all going to be run: they are run side by side.
        """
        size = margin(state.clean_logits(), state.y).clamp_min(1e-12)
        done, gained = torch.zeros_like(state.y), torch.zeros_like(size)
        worth = state.robust()
        while True:
            earned = self._earned(state.margin[worth] / size[worth], done[worth], gained[worth])
            more = earned > done[worth]
            state.early_stopped[worth] = ~more & (earned < self.rounds)
            worth, earned = worth[more], earned[more]
            if len(worth) == 0:
                return
            for part in _parts(earned - done[worth], len(state.x)):
                at = worth[part]
                gained[at] = self._side_by_side(state, at, done[at], earned[part]) / size[at]
            done[worth] = earned
            worth = worth[~state.broken[worth]]

    def _earned(self, left: Tensor, done: Tensor, gained: Tensor) -> Tensor:
        """How many rounds (M,) images have earned, by what is left of their margin and what the last round gained."""
        needed = self.near / 2.0 ** torch.arange(self.rounds, dtype=left.dtype, device=left.device)
        earned = (left[:, None] < needed).sum(dim=1)
        return torch.maximum(earned, done + (gained >= self.gain)).clamp_max(self.rounds)

    def _side_by_side(self, state: AttackState, at: Tensor, done: Tensor, earned: Tensor) -> Tensor:
        """Run rounds `done` (M,) to `earned` (M,) toward the runners-up: what (M,) the last round gained."""
        closest = runner_up(state.logits(state.images[at], at), state.y[at])
        number = torch.arange(self.rounds, device=at.device)
        image, number = ((number >= done[:, None]) & (number < earned[:, None])).nonzero().unbind(dim=1)
        rows, last = at[image], number == earned[image] - 1
        branch = state.branch(rows)
        goal = toward(branch, targeted_margin_loss, closest[image])
        climb(branch, goal, Schedule(self.steps, rho=0.75), stream="rounds", counter=number)
        before = state.margin.scatter_reduce(0, rows[~last], branch.margin[~last], "amin")
        state.merge(branch, rows)
        return before[at] - state.margin[at]


@dataclass(frozen=True)
class Escalate(Attack):
    """A look for masked gradients on every image that is still robust, and more attacks where one may help.

    Masked are gradients that do not predict the model (`masked_gradients`). Where they predict too much, the image gets
    20 steps of APGD on gradients averaged over 8 noisy neighbours. A gradient that is exactly 0 somewhere, gradient
    attacks that never lowered the margin at all, and a Square that gets lower than all of them did are suspicious too;
    Square has `queries` queries on a random image in `every`, and on suspicious images 1,000. A random image in `walk`
    gets a short walk along the boundary, which must not break it. An image that broke only on the folded copy goes
    through the standard cascade on the model itself.
    """

    name: ClassVar[str] = "escalate"
    queries: int = 300
    every: int = 16
    walk: int = 4

    def __post_init__(self) -> None:
        Square(queries=self.queries)
        check_least(self, 1, "every", "walk")

    def attack(self, state: AttackState) -> None:
        by_gradient, clean = state.margin.clone(), margin(state.clean_logits(), state.y)
        found = masked_gradients(state)
        with state.only(_sample(state, self.every, stream="escalate-sample")):
            Square(queries=self.queries, rescale=True, candidates=4).attack(state)
        state.close_stage(PROBE)
        lower = state.margin < by_gradient
        if lower.any():
            text = f"of the one in {self.every} that was probed got lower by a short Square than by all gradients"
            state.notes.append(Note("probe", text, int(lower.sum()), len(state.x)))
        self._walk(state)
        suspicious = state.zero_gradient | (by_gradient >= clean) | lower
        state.masked = found.any | suspicious
        standard = standard_attacks(state.clean_logits().shape[1], state.threat.norm)
        attack_folded_only(state, Cascade(standard), Cascade(gradient_attacks()))
        for attack, images in ((SMOOTHED, found.too_much), (BLACK_BOX, suspicious)):
            at = (images & ~state.broken).nonzero().squeeze(1)
            if len(at):
                state.early_stopped[at] = False
                text = f"looked masked and were attacked again, by {spelled(attack)}"
                state.notes.append(Note("escalated", text, len(at), len(state.x)))
                with state.only(at):
                    attack.attack(state)
                state.close_stage(spelled(attack))

    def _walk(self, state: AttackState) -> None:
        """A walk along the boundary on a sample, and a note on the images that it breaks."""
        before = state.broken.clone()
        with state.only(_sample(state, self.walk, stream="walk-sample")):
            WALK.attack(state)
        state.close_stage(spelled(WALK))
        if broken := int((state.broken & ~before).sum()):
            text = (
                f"were broken by a boundary walk after the gradient attacks; it looks at a random image in {self.walk}"
            )
            state.notes.append(Note("boundary", text, broken, len(state.x)))


def _sample(state: AttackState, every: int, *, stream: str) -> Tensor:
    """The positions of a random image in `every`, the same in any batch."""
    drawn = rng.uniform(state.seed, state.ids, stream=stream, shape=(1,)).squeeze(1)
    return (drawn < 1 / every).nonzero().squeeze(1)


def attack_folded_only(state: AttackState, attack: Attack, half: Attack) -> Tensor:
    """Attack the robust images that broke on the folded copy only once more: which (N,) they were.

    A copy in half precision is often wrong, so `half` searches on the same copy in full precision first. What broke on
    a copy in full precision only is attacked on the model itself, by `attack`.
    """
    folded, searches = state.folded, [("folded_copy_only", "on the model's folded copy", state.model, attack)]
    if isinstance(folded, Autocast):
        searches.insert(0, ("half_precision_only", "in half precision", folded.classifier, half))
    every = torch.zeros_like(state.broken)
    for kind, where, classifier, search in searches:
        folded_only = state.folded_only & ~state.broken & (folded is not state.model)
        at = folded_only.nonzero().squeeze(1)
        if len(at) == 0:
            break
        state.notes.append(Note(kind, f"broke only {where} and were attacked once more", len(at), len(state.x)))
        every, state.folded, state.nearest = every | folded_only, classifier, None
        state.early_stopped[at] = state.folded_only[at] = False
        with state.only(at):
            search.attack(state)
    state.folded, state.folded_only[every] = folded, False
    return every


def _parts(runs: Tensor, most: int) -> list[Tensor]:
    """The positions of `runs` (M,) in parts: up to `most` runs together, or one image that takes more by itself."""
    parts: list[list[int]] = []
    room = 0
    for position, count in enumerate(runs.tolist()):
        if count > room or not parts:
            parts.append([])
            room = most
        parts[-1].append(position)
        room -= count
    return [torch.tensor(part, device=runs.device) for part in parts]
