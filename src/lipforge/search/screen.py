"""Candidates that differ little, attacked on the same images, so that the work on one serves the others.

The base is attacked in full. Then, for every other candidate in turn:

1. Adversarial points found for the base and for earlier candidates are tried: one forward pass each.
2. Where an image is robust on the base, the base's strongest point is refined on the candidate.
3. If its margin stays above `skip_above` times the clean margin all the same, the image is skipped: counted as robust.
4. What is left, and a random share `recheck` of the skipped images, is attacked in full.

Step 4 waits until all shards are screened, because a model is slow on a few images at a time. At the end of each pass
the points found for later candidates are tried on earlier ones. All of this depends on each image alone.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks import Attack, AttackResult, margin, refine
from lipforge.attacks.queries import logits_of
from lipforge.evaluation.robust import classified, unbroken
from lipforge.records import to_builtins
from lipforge.results import MISCLASSIFIED, ROBUST, Note
from lipforge.runs import Shard
from lipforge.types import Classifier, Threat

SKIP_ABOVE, RECHECK = 0.03, 0.05  # the defaults of the two shares above
REACH = 4.0  # a point is refined if its margin looks smaller than this many times the one that is skipped
REFINE = 20  # steps of a refinement
TRANSFER = "transfer from "  # how the outcome of an image begins that was broken by a point found for another candidate
COUNTS = ("attacked", "transferred", "refined", "rechecked", "rechecked_broken", "forwards", "backwards", "seconds")

Records = Mapping[str, dict[str, Any]]
"""What became of the images of one shard, for each candidate by its label; ready for JSON."""


@dataclass(frozen=True)
class Candidate:
    """A classifier by its label, with all the views of it that are attacked; the first view is the one that counts."""

    label: str
    views: Mapping[str, Classifier]

    @property
    def classifier(self) -> Classifier:
        """The view that counts: every success is confirmed on it."""
        return next(iter(self.views.values()))


class Points(NamedTuple):
    """Points (M, C, H, W) worth trying on other candidates, for the images at these rows (M,) of the shard."""

    label: str
    rows: Tensor
    points: Tensor


class Pending(NamedTuple):
    """What the screening left of one candidate: outcomes by image, which are pending, and which of these by chance."""

    outcome: Mapping[int, str]
    pending: frozenset[int]
    drawn: frozenset[int]


@dataclass(frozen=True)
class BaseAttack:
    """What the attack on the base left behind: its state, its strongest points, and their margins (N,) on it. `reached`
    (N,) are the smallest margins that the attack reached, which a folded copy may have rounded."""

    state: "CandidateState"
    points: Tensor
    reached: Tensor
    at_points: Tensor

    def again(self) -> "BaseAttack":
        """The same for a later search, whose passes start from 0."""
        return replace(self, state=self.state.fresh())


@dataclass(frozen=True)
class Screening:
    """All it takes to attack any shard: `candidates`, base first, and the settings of the module's docstring.
    `prepared` makes the folded copy that an attack searches on. `base_attacks` keeps, by the first image of a shard,
    the attack on the base where later searches share it; it is counted only if `count_base`."""

    candidates: tuple[Candidate, ...]
    attack: Attack
    threat: Threat
    seed: int
    skip_above: float | None
    recheck: float
    prepared: Callable[[Classifier], Classifier] = lambda view: view
    base_attacks: dict[int, BaseAttack] | None = None
    count_base: bool = True
    watch: Callable[[str], None] = lambda attack: None

    def screen(self, shard: Shard) -> Records:
        """Steps 1 to 3: what became of these images, what it cost, and which are pending."""
        base = self._attack_base(shard)
        states = [base.state]
        found = [Points(base.state.label, torch.arange(len(shard.x), device=shard.x.device), base.points)]
        for candidate in self.candidates[1:]:
            state = CandidateState(candidate.label, candidate.classifier, shard)
            with state.timed():
                self._screen_one(state, candidate, base, found)
            states.append(state)
            found.append(state.found())
        _try_later(states, found)
        return {state.label: {"first": int(shard.ids[0]), **state.record()} for state in states}

    def finish(self, shard: Shard, before: Mapping[str, Pending]) -> Records:
        """Step 4, for images of which each is pending for some candidate."""
        states: list[CandidateState] = []
        found: list[Points] = []
        for candidate in self.candidates:
            left = before[candidate.label]
            outcome = [left.outcome[image] for image in shard.ids.tolist()]
            state = CandidateState(candidate.label, candidate.classifier, shard, outcome)
            with state.timed():
                for points in found:
                    state.try_points(points)
                drawn = state.robust & among(shard, left.drawn)
                self._attack_fully(state, candidate, (state.robust & among(shard, left.pending)).nonzero().squeeze(1))
                state.counts["rechecked"] += int(drawn.sum())
                state.counts["rechecked_broken"] += int((drawn & ~state.robust).sum())
            states.append(state)
            found.append(state.found())
        _try_later(states, found)
        return {state.label: state.record() for state in states}

    def clean(self, shard: Shard) -> Records:
        """For each candidate which of these images it classifies correctly, and the seconds that took."""
        found = {}
        for candidate in self.candidates:
            started = time.perf_counter()
            correct = classified(candidate.classifier, shard)[1].tolist()
            found[candidate.label] = {"correct": correct, "seconds": time.perf_counter() - started}
        return found

    def _attack_base(self, shard: Shard) -> BaseAttack:
        first = int(shard.ids[0])
        if self.base_attacks is not None and first in self.base_attacks:
            return self.base_attacks[first].again()
        base = self.candidates[0]
        state = CandidateState(base.label, base.classifier, shard)
        with state.timed():
            self._attack_fully(state, base, state.robust.nonzero().squeeze(1))
            # The others will be refined from these points, so the base is too.
            self._refine(state, base, state.points, state.margin <= REACH * self._skip_margin(state))
            at_points = state.margin_at(state.points)
        done = BaseAttack(state, state.points.clone(), state.margin, at_points)
        if self.base_attacks is not None:
            self.base_attacks[first] = done.again()
        return done if self.count_base else done.again()

    def _screen_one(
        self, state: "CandidateState", candidate: Candidate, base: BaseAttack, found: Sequence[Points]
    ) -> None:
        """Steps 1 to 3 for one candidate."""
        at_points = state.try_points(found[0])
        for points in found[1:]:
            state.try_points(points)
        # What the attack on the base reached, corrected by how the two differ at the base's strongest point.
        predicted = base.reached + at_points - base.at_points
        robust_on_base, skip = base.state.robust_to_own, self._skip_margin(state)
        refined = self._refine(state, candidate, base.points, robust_on_base & (predicted <= REACH * skip))
        far = robust_on_base & (torch.minimum(predicted, refined) > skip)
        numbers = rng.uniform(self.seed, state.shard.ids, stream=f"search-audit/{candidate.label}", shape=(1,))
        drawn = numbers.squeeze(1) < self.recheck
        state.pending, state.drawn, state.skipped = ~far | drawn, far & drawn, far & ~drawn

    def _skip_margin(self, state: "CandidateState") -> Tensor:
        clean = state.clean_margin
        return torch.full_like(clean, torch.inf) if self.skip_above is None else self.skip_above * clean

    def _refine(self, state: "CandidateState", candidate: Candidate, points: Tensor, rows: Tensor) -> Tensor:
        """Refine the points of these rows (N,): the margins (N,) reached, infinite where none was refined. A refinement
        that meets a gradient of 0 says nothing: such an image gets -inf and is attacked in full."""
        shard, reached = state.shard, torch.full_like(state.clean_margin, torch.inf)
        # The base may be its own second view: the same refinement again would find the same.
        views = {id(view): view for view in candidate.views.values()}.values()
        for view in views:
            self.watch(f"{candidate.label}: refine")
            at = (rows & state.robust).nonzero().squeeze(1)
            refined = refine(view, points[at], *shard.at(at), self.threat, REFINE)
            state.counts["forwards"] += refined.forwards * len(at)
            state.counts["backwards"] += refined.backwards * len(at)
            reached = torch.minimum(reached, state.try_points(Points(candidate.label, at, refined.points)))
            reached[at[refined.stuck]] = -torch.inf
        return reached

    def _attack_fully(self, state: "CandidateState", candidate: Candidate, at: Tensor) -> None:
        """Attack these images through each view in turn."""

        def watch(attack: str) -> None:
            self.watch(f"{candidate.label}: {attack}")

        state.counts["attacked"] += len(at)
        for number, view in enumerate(candidate.views.values()):
            at = at[state.robust[at]]
            if len(at) == 0:
                break
            x, y, ids = state.shard.at(at)
            seed = self.seed + number  # another for each view: a second look from the same starts would see less
            result = self.attack.run(
                self.prepared(view), x, y, threat=self.threat, seed=seed, sample_ids=ids, watch=watch
            )
            state.enter(at, result, confirm=number > 0)


class CandidateState:
    """What became of a shard's images on one candidate so far, and what it cost. `robust` (N,) are unbroken so far,
    `points` the strongest point of each image, and `margin` (N,) the smallest margin that an attack on this candidate
    reached. `pending` images are still to be attacked in full, `drawn` ones of them by chance; `skipped` ones are not.
    Clean images are classified, unless their outcome is known."""

    def __init__(self, label: str, classifier: Classifier, shard: Shard, outcome: list[str] | None = None) -> None:
        started = time.perf_counter()
        self.label, self.classifier, self.shard = label, classifier, shard
        self.points = shard.x.clone()
        self.counts: Counter[str] = Counter()
        self.notes: list[Note] = []
        self.clean_margin = torch.full_like(shard.y, torch.nan, dtype=shard.x.dtype)
        if outcome is None:
            logits = self._logits(shard.x, shard.ids)
            self.clean_margin = margin(logits, shard.y)
            outcome = unbroken(logits.argmax(dim=1) == shard.y)
        self.outcome = outcome
        self.robust = torch.tensor([word == ROBUST for word in outcome], device=shard.y.device)
        self.pending, self.drawn, self.skipped, self.own = (torch.zeros_like(self.robust) for _ in range(4))
        self.margin = torch.full_like(self.clean_margin, torch.inf)
        self.seconds = time.perf_counter() - started

    @property
    def robust_to_own(self) -> Tensor:
        """Which images (N,) are classified correctly and were not broken by an attack on this candidate itself."""
        return torch.tensor([word != MISCLASSIFIED for word in self.outcome], device=self.own.device) & ~self.own

    def try_points(self, found: Points) -> Tensor:
        """Try points on the images that are robust; the margins (N,) at them, infinite where none was tried."""
        mine = found.label == self.label
        margins = torch.full_like(self.clean_margin, torch.inf)
        kept = self.robust[found.rows]
        at, points = found.rows[kept], found.points[kept]
        if len(at) == 0:
            return margins
        logits = self._logits(points, self.shard.ids[at])
        margins[at] = margin(logits, self.shard.y[at])
        broken = logits.argmax(dim=1) != self.shard.y[at]
        self._break(at[broken], points[broken], ["refine" if mine else f"{TRANSFER}{found.label}"] * int(broken.sum()))
        if mine:
            stronger = margins[at] < self.margin[at]
            self.points[at[stronger]] = points[stronger]
            self.margin[at] = torch.minimum(self.margin[at], margins[at])
            self.own[at[broken]] = True
        self.counts["refined" if mine else "transferred"] += int(broken.sum())
        return margins

    def margin_at(self, points: Tensor) -> Tensor:
        return margin(self._logits(points, self.shard.ids), self.shard.y)

    def enter(self, at: Tensor, result: AttackResult, *, confirm: bool) -> None:
        """Enter what an attack did to these images; `confirm` its successes here, if it ran on another view."""
        self.counts["forwards"] += int(result.forwards.sum())
        self.counts["backwards"] += int(result.backwards.sum())
        self.notes += result.notes
        stronger = result.margin < self.margin[at]
        self.points[at[stronger]] = result.images[stronger]
        self.margin[at] = torch.minimum(self.margin[at], result.margin.to(self.margin))
        broken = result.broken.clone()
        if confirm and broken.any():
            logits = self._logits(result.images[broken], self.shard.ids[at[broken]])
            broken[broken.clone()] = logits.argmax(dim=1) != self.shard.y[at[broken]]
        words = [word for word, hit in zip(result.outcome, broken.tolist(), strict=True) if hit]
        self.own[at[broken]] = True
        self._break(at[broken], result.images[broken], words)

    def found(self) -> Points:
        """The points that an attack on this candidate itself found."""
        rows = self.own.nonzero().squeeze(1)
        return Points(self.label, rows, self.points[rows])

    def fresh(self) -> "CandidateState":
        """A copy whose passes start from 0, for a later search."""
        copy = object.__new__(CandidateState)
        copy.__dict__.update(vars(self), points=self.points.clone(), robust=self.robust.clone(), seconds=0.0)
        copy.outcome, copy.notes = list(self.outcome), list(self.notes)
        passes = ("forwards", "backwards", "transferred")
        copy.counts = Counter({name: count for name, count in self.counts.items() if name not in passes})
        return copy

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    def record(self) -> dict[str, Any]:
        rows = {"pending": self.pending, "drawn": self.drawn, "skipped": self.skipped}
        return {
            "outcome": self.outcome,
            **{name: self.shard.ids[mask & self.robust].tolist() for name, mask in rows.items()},
            "notes": to_builtins(overlay_notes(self.notes, self.counts["attacked"])),
            **{name: self.counts[name] for name in COUNTS},
            "seconds": self.seconds,
        }

    def _break(self, at: Tensor, points: Tensor, words: list[str]) -> None:
        self.robust[at] = False
        self.points[at] = points
        for position, word in zip(at.tolist(), words, strict=True):
            self.outcome[position] = word

    @torch.no_grad()
    def _logits(self, x: Tensor, ids: Tensor) -> Tensor:
        self.counts["forwards"] += len(x)
        return logits_of(self.classifier, x, ids)


def overlay_notes(notes: Sequence[Note], total: int) -> list[Note]:
    """Each note once, with its largest count: several views were attacked on the same images; Square's add up."""
    counts: dict[tuple[str, str], list[int]] = {}
    for note in notes:
        counts.setdefault((note.kind, note.text), []).extend([] if note.count is None else [note.count])
    return [
        Note(*key, (sum if key[0] == "square" else max)(found), total) if found else Note(*key)
        for key, found in counts.items()
    ]


def among(shard: Shard, images: Collection[int]) -> Tensor:
    """Which of the shard's images (N,) are at these positions of the data."""
    return torch.tensor([position in images for position in shard.ids.tolist()], device=shard.ids.device)


def _try_later(states: Sequence[CandidateState], found: Sequence[Points]) -> None:
    for place, state in enumerate(states):
        with state.timed():
            for points in found[place + 1 :]:
                state.try_points(points)
