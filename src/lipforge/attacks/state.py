"""One attack on one batch: which images are still robust, what broke the others, and what each image has cost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lipforge.attacks import norms
from lipforge.attacks.folding import CHECKED, Precision, folded_copy
from lipforge.attacks.losses import Boundaries, Loss, TargetedLoss, margin
from lipforge.attacks.queries import Prepared, check_labels, logits_of
from lipforge.errors import InputError, ModelError
from lipforge.results import MISCLASSIFIED, ROBUST, Note, Stage
from lipforge.types import Classifier, Threat

Goal = Callable[[Tensor, Tensor], Tensor]
"""What an attack maximises: logits (M, K) and the positions (M,) of their images to one number per image (M,)."""


@dataclass(frozen=True)
class AttackResult:
    """Images (N, C, H, W) inside the threat, which of them are broken, and what each has cost.

    The image of one that is robust is the strongest point that was found for it: that with the smallest margin.

    `outcome` says for each image "robust", "misclassified" (as it was given) or which attack broke it. `forwards` and
    `backwards` (N,) count the passes of the whole classifier each image went through: with TTA, all transforms are one.
    `early_stopped` (N,) are the robust images that `fast` stopped attacking before its last round. `margin` (N,) is the
    smallest margin, z_y - max_{i != y} z_i, that any point reached. `distance` (N,) is how far the nearest point is
    that fooled the model: 0 where it is misclassified as given, infinite where it is robust. `notes` are the reasons
    not to trust the result.
    """

    images: Tensor
    broken: Tensor
    forwards: Tensor
    backwards: Tensor
    early_stopped: Tensor
    margin: Tensor
    distance: Tensor
    outcome: tuple[str, ...]
    stages: tuple[Stage, ...]
    notes: tuple[Note, ...]


class Slope(NamedTuple):
    """A goal's gradient with respect to the images, its value (M,), and the logits (M, K) it came from."""

    gradient: Tensor
    value: Tensor
    logits: Tensor


class AttackState:
    """The images of one batch while attacks work on those that are still robust.

    Attacks address images by their positions `at` (M,) in the batch, so that broken ones can leave at any time. All
    passes through the model go through here, which is what makes the counts true. Attacks search on `folded`, which is
    the model itself unless there is a folded copy; a success counts only once the model itself, asked again, is fooled.
    With `minimise`, attacks that look for the nearest point that fools the model go on where they have found one.
    """

    def __init__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int,
        sample_ids: Tensor,
        minimise: bool = False,
    ):
        self.prepared = isinstance(model, Prepared)
        self.model: Classifier = model.original if isinstance(model, Prepared) else model
        self.folded: Classifier = model.folded if isinstance(model, Prepared) else model
        self.x, self.y, self.ids = x.detach(), y.long(), sample_ids
        self.threat, self.norm, self.eps, self.seed = threat, norms.of(threat), threat.eps, seed
        self.minimise = minimise
        self.images = x.detach().clone()
        self.forwards = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self.backwards = torch.zeros_like(self.forwards)
        false = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.broken, self.zero_gradient, self.early_stopped, self._skipped = (false.clone() for _ in range(4))
        # Where gradients were found not to predict the model.
        self.masked = false.clone()
        # Where the folded copy was fooled inside the threat and the model, asked again, was not.
        self.folded_only = false.clone()
        # The smallest margin that any point inside the threat has reached.
        self.margin = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        # How far the nearest point is that has fooled the model itself; 0 where the image is misclassified as given.
        self.distance = torch.full_like(self.margin, torch.inf)
        self.nearest: Boundaries | None = None
        self.tested: tuple[Tensor, Tensor] | None = None
        self.outcome = [ROBUST] * len(x)
        self.stages: list[Stage] = []
        self.notes: list[Note] = []
        self.announce: Callable[[str], None] = lambda attack: None  # told which attack is about to begin
        self._clean: Tensor | None = None
        self._drawn = 0
        self._origin: Tensor | None = None
        self._began = time.perf_counter()

    def fold(self, precision: Precision = "float32") -> None:
        """Search on a folded copy from now on, unless the model came prepared; costs up to 3 forwards on a few."""
        if self.folded is self.model and not self.prepared:
            self.folded, passes = folded_copy(self.model, self.x, precision)
            self.forwards[:CHECKED] += passes

    def robust(self) -> Tensor:
        """The positions of the images that no attack has broken yet, without those that are skipped."""
        return (~(self.broken | self._skipped)).nonzero().squeeze(1)

    def attackable(self) -> Tensor:
        """The positions of the images to attack: the robust ones, and with `minimise` all that were classified
        correctly, as a nearer point may be found for them."""
        return (~((self.distance == 0 if self.minimise else self.broken) | self._skipped)).nonzero().squeeze(1)

    @contextmanager
    def only(self, at: Tensor) -> Iterator[None]:
        """Skip all images but those at these positions."""
        before, self._skipped = self._skipped, torch.ones_like(self._skipped)
        self._skipped[at] = before[at]
        try:
            yield
        finally:
            self._skipped = before

    def branch(self, at: Tensor) -> "AttackState":
        """A state of its own for the images at these positions, each as often as it is named; `merge` brings it back.

        Several runs on a few images then share their batches: a model is slow on one image at a time.
        """
        model = Prepared(self.model, self.folded)
        branch = AttackState(model, self.x[at], self.y[at], threat=self.threat, seed=self.seed, sample_ids=self.ids[at])
        branch._clean = self.clean_logits()[at]
        branch._origin = at
        return branch

    def merge(self, branch: "AttackState", at: Tensor) -> None:
        """Take in what a branch found for the images at these positions, and what it cost."""
        self.forwards.index_add_(0, at, branch.forwards)
        self.backwards.index_add_(0, at, branch.backwards)
        self.zero_gradient[at[branch.zero_gradient]] = True
        self.folded_only[at[branch.folded_only]] = True
        self.notes += branch.notes
        self.folded = branch.folded  # the model itself, if the folded copy failed there
        stronger = branch.broken | (branch.margin < self.margin[at])
        # One by one, so that of several points for one image the strongest is kept on every device.
        for row in branch.margin.argsort(descending=True, stable=True).tolist():
            if stronger[row] and not self.broken[at[row]]:
                self.broken[at[row]] = branch.broken[row]
                self.images[at[row]] = branch.images[row]
        self.margin.scatter_reduce_(0, at, branch.margin, "amin")
        self.distance.scatter_reduce_(0, at, branch.distance, "amin")

    def edge_start(self, at: Tensor, eps: float, *, stream: str, counter: int | Tensor) -> Tensor:
        """A random point at distance eps from each image at these positions; `counter` may be one for each image."""
        each = counter[at] if isinstance(counter, Tensor) else counter
        return self.norm.edge_start(
            self.x[at], eps, seed=self.seed, sample_ids=self.ids[at], stream=stream, counter=each
        )

    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the images as they were given, computed once; what they get wrong is not attacked."""
        if self._clean is None:
            with torch.no_grad():
                self.use_clean_logits(logits_of(self.model, self.x, self.ids))
            self.forwards += 1
        assert self._clean is not None
        return self._clean

    def use_clean_logits(self, logits: Tensor) -> None:
        """Take these (N, K) for the logits of the images as they were given."""
        if logits.ndim != 2 or len(logits) != len(self.x):
            raise InputError(f"clean_logits must be (N, K), one row per image, got {tuple(logits.shape)}")
        check_labels(self.y, logits.shape[1])
        self._clean = logits.detach().to(self.x.device)
        self.margin = torch.minimum(self.margin, margin(self._clean, self.y).to(self.margin))
        wrong = (self._clean.argmax(dim=1) != self.y) & ~self.broken
        self.broken |= wrong
        self.distance[wrong] = 0.0
        for position in wrong.nonzero().squeeze(1).tolist():
            self.outcome[position] = MISCLASSIFIED

    @torch.no_grad()
    def logits(self, x_adv: Tensor, at: Tensor, *, eot_iter: int = 1) -> Tensor:
        """The logits of `x_adv`, points for the images at these positions, which may name an image several times; the
        mean of `eot_iter` forwards."""
        self.forwards.index_add_(0, at, torch.full_like(at, eot_iter))
        passes = [self.ask(x_adv, at) for _ in range(eot_iter)]
        return passes[0] if eot_iter == 1 else torch.stack(passes).mean(dim=0)

    def gradient(self, x_adv: Tensor, at: Tensor, goal: Goal, *, eot_iter: int = 1, noise: float = 0.0) -> Slope:
        """The goal's slope at `x_adv`, the mean over `eot_iter` passes where the model is random.

        With `noise` the gradient is the mean over random points within that multiple of eps; value and logits are not.
        """
        points = self._neighbours(x_adv, at, noise, eot_iter) if noise else [x_adv] * eot_iter
        slope, *more = [self._slope(point, at, goal) for point in points]
        if more:
            slope = Slope(*(torch.stack(part).mean(0) for part in zip(slope, *more, strict=True)))
        if noise:
            logits = self.logits(x_adv, at)
            slope = Slope(slope.gradient, goal(logits, at), logits)
        self.note_zeros(at, slope.gradient)
        return slope

    def note_zeros(self, at: Tensor, gradient: Tensor) -> None:
        """Remember for which images the whole gradient is exactly 0."""
        self.zero_gradient[at] |= gradient.abs().flatten(1).amax(dim=1) == 0

    def record(self, x_adv: Tensor, at: Tensor, logits: Tensor) -> Tensor:
        """Which of these images (M,) are still robust; the others are kept as they are here and leave.

        Of an image that is robust, the point with the smallest margin so far is kept.
        """
        value = margin(logits, self.y[at]).to(self.margin)
        robust = value > 0
        all_robust = bool(robust.all())
        if not all_robust:
            rows = (~robust).nonzero().squeeze(1)
            broken, value[rows] = self._confirm(x_adv[rows], at[rows])
            robust[rows] = ~broken
            self.broken[at[rows]] |= broken
        stronger = ((value < self.margin[at]) & ~self.broken[at]) | ~robust
        self.images[at[stronger]] = x_adv[stronger]
        self.margin[at] = torch.minimum(self.margin[at], value)
        if self._origin is None or all_robust:
            return robust
        return robust & ~torch.isin(self._origin[at], self._origin[self.broken])

    def record_nearer(self, x_adv: Tensor, at: Tensor, logits: Tensor) -> Tensor:
        """Which points (M,) fool the folded copy; the model itself is asked about those that are nearer than any
        before, and the nearest that fools it is kept."""
        fooled = logits.argmax(dim=1) != self.y[at]
        rows = ~fooled | (self.norm.distance(x_adv - self.x[at]) < self.distance[at])
        if rows.any():
            self.record(x_adv[rows], at[rows], logits[rows])
        return fooled

    def ask_model(self) -> None:
        """Show the model itself the strongest point of every robust image, if the search was on a folded copy.

        A success on the folded copy is confirmed at once; this is for the points at which it was wrongly right.
        """
        at = (~self.broken).nonzero().squeeze(1)
        if self.folded is self.model or len(at) == 0:
            return
        self.broken[at], value = self._confirm(self.images[at], at)
        self.margin[at] = torch.minimum(self.margin[at], value)
        if self.stages:  # it belongs to the last one, which is closed again
            self.close_stage(self.stages.pop().attack)

    def close_stage(self, attack: str) -> None:
        """Close a stage, if anything was asked since the last: note what it broke, and what it cost."""
        for position in self.broken.nonzero().squeeze(1).tolist():
            if self.outcome[position] == ROBUST:
                self.outcome[position] = attack
        forwards = int(self.forwards.sum()) - sum(stage.forwards for stage in self.stages)
        backwards = int(self.backwards.sum()) - sum(stage.backwards for stage in self.stages)
        seconds = time.perf_counter() - self._began - sum(stage.seconds for stage in self.stages)
        if forwards or not self.stages:
            self.stages.append(Stage(attack, int((~self.broken).sum()), forwards, backwards, seconds))

    def result(self, attack: str) -> AttackResult:
        """What there is to report; what belongs to no stage yet belongs to one with the name `attack`."""
        self.close_stage(attack)
        early_stopped = self.early_stopped & ~self.broken
        tensors = (self.images, self.broken, self.forwards, self.backwards, early_stopped, self.margin, self.distance)
        return AttackResult(*tensors, tuple(self.outcome), tuple(self.stages), tuple(self.notes))

    def ask(self, x_adv: Tensor, at: Tensor) -> Tensor:
        """The checked logits of the folded copy, not counted: for attacks that count their passes themselves.

        A folded copy whose logits are not finite, as happens in float16, is dropped for the model.
        """
        try:
            logits = logits_of(self.folded, x_adv, self.ids[at])
        except ModelError:
            if self.folded is self.model:
                raise
            text = "the folded copy was dropped, as its logits were not finite; with precision float16, use bfloat16"
            self.notes.append(Note("folded_copy_dropped", text))
            self.folded = self.model
            logits = logits_of(self.model, x_adv, self.ids[at])
        if self._clean is None:
            check_labels(self.y, logits.shape[1])
        return logits

    @torch.no_grad()
    def _confirm(self, x_adv: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Which images (M,) fool the model itself, in a batch of their own, inside the threat; and its margins (M,)."""
        self.forwards[at] += 1
        logits = logits_of(self.model, x_adv, self.ids[at])
        again = logits.argmax(dim=1) != self.y[at]
        self.folded_only[at] |= ~again
        inside = self.norm.inside(x_adv, self.x[at], self.eps)
        distance = torch.where(again & inside, self.norm.distance(x_adv - self.x[at]), torch.inf)
        self.distance[at] = torch.minimum(self.distance[at], distance)
        value = margin(logits, self.y[at]).to(self.margin)
        return again & inside, torch.where(inside, value, torch.inf)  # what is outside is no point of the threat

    def _neighbours(self, x_adv: Tensor, at: Tensor, noise: float, count: int) -> list[Tensor]:
        """Random points near each of `x_adv`, drawn anew at every call."""
        drawn, self._drawn = self._drawn, self._drawn + count
        draw = partial(self.norm.random_start, seed=self.seed, sample_ids=self.ids[at], stream="neighbours")
        return [draw(x_adv, noise * self.eps, counter=drawn + number) for number in range(count)]

    def _slope(self, x_adv: Tensor, at: Tensor, goal: Goal) -> Slope:
        self.forwards[at] += 1
        self.backwards[at] += 1
        x_adv = x_adv.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.ask(x_adv, at)
            value = goal(logits, at)
            # Unused, where only the model's parameters have a gradient: its images pass through a comparison, say.
            gradient = torch.autograd.grad(value.sum(), x_adv, allow_unused=True)[0] if value.requires_grad else None
        if gradient is None:
            raise ModelError(
                "the model gives no gradient with respect to its images; attack it without one (square, --attack "
                "square), or audit it against another model with a surrogate that has one"
            )
        return Slope(gradient, value.detach(), logits.detach())


def away(state: AttackState, loss: Loss) -> Goal:
    """The goal to leave the true class."""
    return lambda logits, at: loss(logits, state.y[at])


def toward(state: AttackState, loss: TargetedLoss, target: Tensor) -> Goal:
    """The goal to reach the class `target` (N,) of each image of the batch."""
    return lambda logits, at: loss(logits, state.y[at], target[at])
