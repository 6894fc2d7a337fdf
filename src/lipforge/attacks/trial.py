"""One attack on one batch: who still stands, what fooled the others, and what each image has cost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lipforge.attacks.losses import Loss, TargetedLoss, margin
from lipforge.attacks.norms import edge_start, inside
from lipforge.attacks.prepare import CHECKED, Precision, stand_in
from lipforge.attacks.queries import Prepared, check_labels, logits_of
from lipforge.attacks.result import AttackResult, Stage
from lipforge.errors import ModelError
from lipforge.types import Classifier, Threat

Goal = Callable[[Tensor, Tensor], Tensor]
"""What an attack maximises: logits (M, K) and the positions (M,) of their images to one number per image (M,)."""

ROBUST, MISCLASSIFIED = "robust", "misclassified"


class Slope(NamedTuple):
    """A goal's gradient with respect to the images, its value (M,), and the logits (M, K) it came from."""

    gradient: Tensor
    value: Tensor
    logits: Tensor


class Trial:
    """The images of one batch while attacks work on those that stand.

    Attacks address images by their positions `at` (M,) in the batch, so that fooled ones can leave at any time. All
    passes through the model go through here, which is what makes the counts true. Attacks search on `quick`, which is
    the model itself unless it was prepared; a success counts only once the model itself, asked again, is fooled.
    """

    def __init__(self, model: Classifier, x: Tensor, y: Tensor, *, threat: Threat, seed: int, sample_ids: Tensor):
        self.model: Classifier = model
        self.quick: Classifier = model
        self.use(model)
        self.x, self.y, self.ids = x.detach(), y, sample_ids
        self.threat, self.seed = threat, seed
        self.images = x.detach().clone()
        self.fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.forwards = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self.backwards = torch.zeros_like(self.forwards)
        self.zero_gradient = torch.zeros_like(self.fooled)
        self.given_up = torch.zeros_like(self.fooled)
        # Where the stand-in was fooled inside the threat and the model, asked again, was not.
        self.disputed = torch.zeros_like(self.fooled)
        # The largest margin (max_{i != y} z_i - z_y) that any point inside the threat has reached.
        self.closest = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.nearest: Tensor | None = None
        self.outcome = [ROBUST] * len(x)
        self.stages: list[Stage] = []
        self.notes: list[str] = []
        self.watch: Callable[[str], None] | None = None
        self._resting = torch.zeros_like(self.fooled)
        self._clean: Tensor | None = None
        self._origin: Tensor | None = None
        self._settled = (0, 0, time.perf_counter())

    def announce(self, attack: str) -> None:
        """Tell whoever watches which attack is about to begin."""
        if self.watch is not None:
            self.watch(attack)

    def use(self, model: Classifier) -> None:
        """Search on the stand-in of a prepared model from now on, and ask its original; or ask one model for both."""
        self.model, self.quick = (model.original, model.quick) if isinstance(model, Prepared) else (model, model)

    def prepare(self, precision: Precision = "float32") -> None:
        """Search on a stand-in for the model from now on, unless it came with one; costs up to 3 forwards on a few."""
        if self.quick is self.model:
            self.quick, passes = stand_in(self.model, self.x, precision)
            self.forwards[:CHECKED] += passes

    def standing(self) -> Tensor:
        """The positions of the images that nothing has fooled yet, without those that rest."""
        return (~(self.fooled | self._resting)).nonzero().squeeze(1)

    @contextmanager
    def only(self, at: Tensor) -> Iterator[None]:
        """Let all images rest but those at these positions."""
        before, self._resting = self._resting, torch.ones_like(self._resting)
        self._resting[at] = before[at]
        try:
            yield
        finally:
            self._resting = before

    def branch(self, at: Tensor) -> "Trial":
        """A trial of its own for the images at these positions, each as often as it is named; `merge` brings it back.

        Several runs on a few images then share their batches: a model is slow on one image at a time.
        """
        model = Prepared(self.model, self.quick)
        branch = Trial(model, self.x[at], self.y[at], threat=self.threat, seed=self.seed, sample_ids=self.ids[at])
        branch._clean = self.clean_logits()[at]
        branch._origin = at
        return branch

    def merge(self, branch: "Trial", at: Tensor) -> None:
        """Take in what a branch found for the images at these positions, and what it cost."""
        self.forwards.index_add_(0, at, branch.forwards)
        self.backwards.index_add_(0, at, branch.backwards)
        self.zero_gradient[at[branch.zero_gradient]] = True
        self.disputed[at[branch.disputed]] = True
        self.notes += branch.notes
        self.quick = branch.quick  # the model itself, if the stand-in failed there
        stronger = branch.fooled | (branch.closest > self.closest[at])
        # One by one, so that of several points for one image the strongest is kept on every device.
        for row in branch.closest.argsort(stable=True).tolist():
            if stronger[row] and not self.fooled[at[row]]:
                self.fooled[at[row]] = branch.fooled[row]
                self.images[at[row]] = branch.images[row]
        self.closest.scatter_reduce_(0, at, branch.closest, "amax")

    def edge(self, at: Tensor, threat: Threat, *, stream: str, counter: int | Tensor) -> Tensor:
        """A random point at distance eps from each image at these positions; `counter` may be one for each image."""
        counter = counter[at] if isinstance(counter, Tensor) else counter
        return edge_start(self.x[at], threat, seed=self.seed, sample_ids=self.ids[at], stream=stream, counter=counter)

    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the images as they were given, computed once; what they get wrong no longer stands."""
        if self._clean is None:
            with torch.no_grad():
                self._clean = logits_of(self.model, self.x, self.ids)
            self.forwards += 1
            check_labels(self.y, self._clean.shape[1])
            self.closest = torch.maximum(self.closest, margin(self._clean, self.y).to(self.closest))
            wrong = (self._clean.argmax(dim=1) != self.y) & ~self.fooled
            self.fooled |= wrong
            for position in wrong.nonzero().squeeze(1).tolist():
                self.outcome[position] = MISCLASSIFIED
        return self._clean

    @torch.no_grad()
    def logits(self, x_adv: Tensor, at: Tensor, *, repeats: int = 1) -> Tensor:
        """The logits of `x_adv`, which stands in for the images at these positions; the mean of `repeats` forwards."""
        self.forwards[at] += repeats
        passes = [self.ask(x_adv, at) for _ in range(repeats)]
        return passes[0] if repeats == 1 else torch.stack(passes).mean(dim=0)

    def gradient(self, x_adv: Tensor, at: Tensor, goal: Goal, *, repeats: int = 1) -> Slope:
        """The goal's slope at `x_adv`, the mean over `repeats` passes where the model is random."""
        passes = [self._slope(x_adv, at, goal) for _ in range(repeats)]
        slope = passes[0] if repeats == 1 else Slope(*(torch.stack(part).mean(0) for part in zip(*passes, strict=True)))
        self.zero_gradient[at] |= torch.linalg.vector_norm(slope.gradient.flatten(1), torch.inf, dim=1) == 0
        return slope

    def record(self, x_adv: Tensor, at: Tensor, logits: Tensor) -> Tensor:
        """Which of these images (M,) still stand; the others are kept as they are here and do not stand any more.

        Of an image that stands, the point with the largest margin so far is kept.
        """
        value = margin(logits, self.y[at]).to(self.closest)
        standing = value < 0
        all_stand = bool(standing.all())
        if not all_stand:
            rows = (~standing).nonzero().squeeze(1)
            fooled, value[rows] = self._confirm(x_adv[rows], at[rows])
            standing[rows] = ~fooled
            self.fooled[at[rows]] = fooled
        stronger = (value > self.closest[at]) | ~standing
        self.images[at[stronger]] = x_adv[stronger]
        self.closest[at] = torch.maximum(self.closest[at], value)
        if self._origin is None or all_stand:
            return standing
        return standing & ~torch.isin(self._origin[at], self._origin[self.fooled])

    @torch.no_grad()
    def ask_model(self) -> None:
        """Show the model itself the strongest point of every image that stands, if the search was on a stand-in.

        A success of the stand-in is confirmed at once; this is for the points at which it was wrong the other way.
        """
        at = (~self.fooled).nonzero().squeeze(1)
        if self.quick is self.model or len(at) == 0:
            return
        self.forwards[at] += 1
        logits = logits_of(self.model, self.images[at], self.ids[at])
        self.fooled[at] = (logits.argmax(dim=1) != self.y[at]) & inside(self.images[at], self.x[at], self.threat)
        self.closest[at] = torch.maximum(self.closest[at], margin(logits, self.y[at]).to(self.closest))
        if self.stages:  # it belongs to the last one, which is closed again
            last = self.stages.pop()
            forwards, backwards, now = self._settled
            self._settled = (forwards - last.forwards, backwards - last.backwards, now - last.seconds)
            self.settle(last.attack)

    def settle(self, attack: str) -> None:
        """Close a stage, if anything was asked since the last: note what it fooled, and what it cost."""
        for position in self.fooled.nonzero().squeeze(1).tolist():
            if self.outcome[position] == ROBUST:
                self.outcome[position] = attack
        forwards, backwards, now = int(self.forwards.sum()), int(self.backwards.sum()), time.perf_counter()
        if not self.stages or forwards > self._settled[0]:
            spent = (forwards - self._settled[0], backwards - self._settled[1], now - self._settled[2])
            self.stages.append(Stage(attack, int((~self.fooled).sum()), *spent))
            self._settled = (forwards, backwards, now)

    def result(self, attack: str) -> AttackResult:
        """What there is to report; what no stage has settled yet is settled under the name `attack`."""
        self.settle(attack)
        tensors = (self.images, self.fooled, self.forwards, self.backwards, self.given_up & ~self.fooled, self.closest)
        return AttackResult(*tensors, tuple(self.outcome), tuple(self.stages), tuple(self.notes))

    def ask(self, x_adv: Tensor, at: Tensor) -> Tensor:
        """The checked logits of the stand-in, not counted: for attacks that count their passes themselves.

        A stand-in whose logits are not finite, as happens in float16, makes way for the model.
        """
        try:
            logits = logits_of(self.quick, x_adv, self.ids[at])
        except ModelError as error:
            if self.quick is self.model:
                raise
            self.notes.append(f"the search went on without the stand-in: {error}; with precision float16, use bfloat16")
            self.quick = self.model
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
        self.disputed[at] |= ~again
        within = inside(x_adv, self.x[at], self.threat)
        value = margin(logits, self.y[at]).to(self.closest)
        return again & within, torch.where(within, value, -torch.inf)  # what is outside is no point of the threat

    def _slope(self, x_adv: Tensor, at: Tensor, goal: Goal) -> Slope:
        self.forwards[at] += 1
        self.backwards[at] += 1
        x_adv = x_adv.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.ask(x_adv, at)
            if not logits.requires_grad:
                raise ModelError("the model gives no gradient with respect to its images; only square can attack it")
            value = goal(logits, at)
            (gradient,) = torch.autograd.grad(value.sum(), x_adv)
        return Slope(gradient, value.detach(), logits.detach())


def away(trial: Trial, loss: Loss) -> Goal:
    """The goal to leave the true class."""
    return lambda logits, at: loss(logits, trial.y[at])


def toward(trial: Trial, loss: TargetedLoss, target: Tensor) -> Goal:
    """The goal to reach the class `target` (N,) of each image of the batch."""
    return lambda logits, at: loss(logits, trial.y[at], target[at])
