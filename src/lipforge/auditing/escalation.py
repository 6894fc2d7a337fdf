"""No claim without a clean bill: while a check for masked gradients fails, attack harder; if it still fails, say so.

A claim rests on one side not looking more robust than it is: `real` on the candidate, `harmful` and `not real` on the
base, the others on both. A side is in doubt if no gradients that the audit has of it predict it on its robust images,
or if a check of the list says that they are masked.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from lipforge.attacks import APGD
from lipforge.auditing import checks
from lipforge.auditing.attacks import AttackedSide
from lipforge.auditing.pairs import Pair, borrow
from lipforge.auditing.plan import AVERAGED, DISTILLED, FULL, STRAIGHT, Plan
from lipforge.auditing.surrogates import distilled, through_rounding
from lipforge.auditing.verdict import Decision
from lipforge.evaluation.robust import joined
from lipforge.results import ROBUST, Check, Note, Verdict, merge_notes
from lipforge.results.evaluation import POINT, unreliable_notes
from lipforge.runs import Shard
from lipforge.types import Classifier, Threat

SIDES = ("base", "candidate")

RESTS_ON: Mapping[Verdict, tuple[str, ...]] = {
    "real": ("candidate",),
    "harmful": ("base",),
    "not real": ("base",),
}
"""Whose robustness a verdict would be wrong about, if it were overstated; all others rest on both."""

PREDICTED = 0.1  # share of its robust images on which a side's gradients may fail to predict it

AVERAGING = APGD(steps=20, loss="margin", eot_iter=16, noise=0.5)


def doubts(
    shards: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None, decision: Decision, *, same: bool = False
) -> dict[str, tuple[str, ...]]:
    """Why the sides that the decision rests on may look more robust than they are; empty with a clean bill."""
    found = {}
    for side in () if same else RESTS_ON.get(decision.verdict, SIDES):
        parts = [shard[side] for shard in shards]
        # The paper's checks are measured on the candidate, on few images: they may stop a claim of a gain, no more.
        failed = _masking_checks(parts, side, measured, gain=decision.verdict == "real")
        found[side] = tuple(f"{check.name}: no; {check.evidence}" for check in failed if check.passed is False)
    return {side: reasons for side, reasons in found.items() if reasons}


def _masking_checks(
    parts: Sequence[Mapping[str, Any]], side: str, measured: Mapping[str, Any] | None, *, gain: bool
) -> tuple[Check, ...]:
    """The checks that a claim must pass; one of a `gain` also those of the paper, and masked images may not make up a
    point of it."""
    outcome = joined(parts, "outcome")
    robust, count = outcome.count(ROBUST), len(outcome)
    listed = checks.masking(measured, [word == ROBUST for word in outcome]) if gain and measured is not None else ()
    notes = merge_notes([Note(**note) for _, note in joined(parts, "notes")], count)
    flags = unreliable_notes([note for note in notes if note.kind == "square" or note.count is None], count, robust)
    most = min(PREDICTED * robust, POINT * count) if gain else PREDICTED * robust
    return (*listed, predicted(parts, side, most), black_box(outcome, side), checks.attack_flags(flags))


def predicted(parts: Sequence[Mapping[str, Any]], side: str, most: float | None = None) -> Check:
    """Some gradients that the audit has of a side must predict it on each of its robust images, but for `most`."""
    name, robust = f"gradients predict the {side}", joined(parts, "outcome").count(ROBUST)
    if robust == 0:
        return Check(name, None, "no images are robust")
    left = sum(min(part["masked"].values()) for part in parts)
    views = max((part["masked"] for part in parts), key=len)
    text = f"{', '.join(views)} fail together on {left} of {robust} robust images"
    return Check(name, left <= (PREDICTED * robust if most is None else most), text)


def black_box(outcome: Sequence[str], side: str) -> Check:
    """AutoAttack with full Square, after everything else, must not break a point or more."""
    text = f"of the images that decide it breaks {outcome.count(FULL)} more; n = {len(outcome)}"
    return Check(f"AutoAttack adds nothing on the {side}", outcome.count(FULL) <= POINT * len(outcome), text)


def clear(decision: Decision, reasons: Mapping[str, Sequence[str]]) -> Decision:
    """The decision, or `unreliable` where a side that it rests on is still in doubt."""
    if not reasons:
        return decision
    found = decision.sentence.removeprefix(f"{decision.verdict}: ")
    sides = " and the ".join(reasons)
    return Decision(
        "unreliable",
        f"unreliable: it would be {decision.verdict}, {found}, but gradients of the {sides} look masked: "
        + "; ".join(reason for each in reasons.values() for reason in each),
    )


class Escalation:
    """The attacks for sides in doubt, on images that are still robust, the same for both sides.

    First gradients averaged over 16 noisy neighbours, gradients straight through every rounding, and gradients of a
    copy of the opposite side that was distilled on this side's outputs. Then AutoAttack with full Square, on the images
    that decide: those that are robust on one side only.
    """

    def __init__(self, pair: Pair, images: Callable[[list[int]], Tensor], count: int, threat: Threat, plan: Plan):
        self.pair, self.images, self.count, self.threat, self.plan = pair, images, count, threat, plan
        self._copies: dict[str, dict[str, Classifier]] = {}

    def first(self, shard: Shard, before: Mapping[str, Any], watch: Callable[[str], None]) -> dict[str, Any]:
        """The shard's sides after the attacks that do not take long; `before` is what the audit found for it."""
        started, sides = time.perf_counter(), self._sides(shard, before, watch)
        for name, side in sides.items():
            side.attack(AVERAGED, side.side.classifier, AVERAGING, seed=self.plan.seed + 100)
            for stage, view in {**self._straight(name), **self._distilled(name)}.items():
                side.attack(stage, view, self.plan.adaptive, seed=self.plan.seed + 101)
        return self._summaries(sides, started)

    def full(self, shard: Shard, before: Mapping[str, Any], watch: Callable[[str], None]) -> dict[str, Any]:
        """The shard's sides after AutoAttack on the images that decide."""
        started, sides = time.perf_counter(), self._sides(shard, before, watch)
        decide = set(sides["base"].robust) ^ set(sides["candidate"].robust)
        for side in sides.values():
            side.attack(FULL, side.side.classifier, self.plan.full, seed=self.plan.seed + 102, only=decide)
        return self._summaries(sides, started)

    def _summaries(self, sides: Mapping[str, AttackedSide], started: float) -> dict[str, Any]:
        for name, side in sides.items():
            side.look_for_masks(self._straight(name))
        return {**{name: side.summary() for name, side in sides.items()}, "seconds": time.perf_counter() - started}

    def _sides(self, shard: Shard, before: Mapping[str, Any], watch: Callable[[str], None]) -> dict[str, AttackedSide]:
        sides = {"base": self.pair.base, "candidate": self.pair.candidate}
        made = {name: AttackedSide(side, shard, self.threat, watch) for name, side in sides.items()}
        for name, side in made.items():
            side.outcome = list(before[name]["outcome"])
        return made

    def _opposite(self, name: str) -> tuple[Classifier, Classifier]:
        """The side of that name and the one opposite it."""
        base, candidate = self.pair.base.classifier, self.pair.candidate.classifier
        return (base, candidate) if name == "base" else (candidate, base)

    def _straight(self, name: str) -> dict[str, Classifier]:
        """The view of a side with gradients straight through its rounding; none where it does not round."""
        view = through_rounding(self._opposite(name)[0], self.images([0]))
        return {} if view is None else {STRAIGHT: view}

    def _distilled(self, name: str) -> dict[str, Classifier]:
        """The view of a side with the gradients of a distilled copy, if there is one, made when it is first needed."""
        if name not in self._copies:
            side, opposite = self._opposite(name)
            copied = distilled(opposite, side, self.images, self.count, threat=self.threat, seed=self.plan.seed)
            self._copies[name] = {} if copied is None else {DISTILLED: borrow(side, copied)}
        return self._copies[name]


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A shard of the audit with what further attacks made of its sides."""
    found = {**before, "seconds": before["seconds"] + after["seconds"]}
    for side in SIDES:
        old, new = before[side], after[side]
        robust = {at for at, word in enumerate(new["outcome"]) if word == ROBUST}
        stopped = {**old["early_stopped"], **new["early_stopped"]}
        found[side] = {
            **old,
            "outcome": new["outcome"],
            "notes": [*old["notes"], *new["notes"]],
            "forwards": old["forwards"] + new["forwards"],
            "backwards": [a + b for a, b in zip(old["backwards"], new["backwards"], strict=True)],
            "gradients": {**old["gradients"], **new["gradients"]},
            "masked": new["masked"],  # on the images that are robust now
            "early_stopped": {stage: sorted(robust.intersection(at)) for stage, at in stopped.items()},
            "always_early_stopped": 0,  # averaged gradients stop early on no image
        }
    return found
