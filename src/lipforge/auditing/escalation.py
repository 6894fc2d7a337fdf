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
from lipforge.auditing.plan import AVERAGED, BEFORE_GAIN, DISTILLED, FULL, NON_ADAPTIVE, STRAIGHT, Plan
from lipforge.auditing.surrogates import distilled, through_rounding
from lipforge.auditing.verdict import Decision
from lipforge.evaluation.robust import joined
from lipforge.results import MISCLASSIFIED, ROBUST, Check, Note, Verdict, merge_notes
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

MOST_GAINED = 32  # gained images that the attacks before a claim look at

PREDICTED = 0.1  # share of its robust images on which a side's gradients may fail to predict it

AVERAGING = APGD(steps=20, loss="margin", eot_iter=16, noise=0.5)


def doubts(
    shards: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None, decision: Decision, *, same: bool = False
) -> dict[str, tuple[str, ...]]:
    """Why the sides that the decision rests on may look more robust than they are; empty with a clean bill."""
    found = {}
    for side in () if same else RESTS_ON.get(decision.verdict, SIDES):
        failed = _masking_checks(shards, side, measured, decision)
        found[side] = tuple(
            f'check "{check.name}" failed: {check.evidence}' for check in failed if check.passed is False
        )
    return {side: reasons for side, reasons in found.items() if reasons}


def _masking_checks(
    shards: Sequence[Mapping[str, Any]], side: str, measured: Mapping[str, Any] | None, decision: Decision
) -> tuple[Check, ...]:
    """The checks that a claim must pass; one of a gain also those of the paper. No claim may depend on images whose
    gradients look masked: it has to hold if all of them were broken."""
    parts = [shard[side] for shard in shards]
    outcome = joined(parts, "outcome")
    robust, count = outcome.count(ROBUST), len(outcome)
    listed = _gain_checks(shards, measured) if decision.verdict == "real" else ()
    walked = (from_afar(shards),) if side == "candidate" else ()
    notes = merge_notes([Note(**note) for _, note in joined(parts, "notes")], count)
    flags = [note for note in notes if note.kind in ("square", "boundary") or note.count is None]
    flagged = checks.attack_flags(unreliable_notes(flags, count, robust))
    spare = decision.spare.get(side, count)
    return (*listed, *walked, predicted(parts, side, spare), black_box(shards, side), flagged)


def _gain_checks(shards: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None) -> tuple[Check, ...]:
    """The checks of the list without which no gain is claimed: neither Square nor the base's images may break what the
    non-adaptive attack on the candidate leaves."""
    left = left_by_non_adaptive(shards)
    listed = () if measured is None else checks.masking(measured, left)
    return (*listed, checks.transferred(left, joined(shards, "transferred")))


def left_by_non_adaptive(shards: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which images the non-adaptive attack on the candidate leaves, whatever breaks them later."""
    outcome = joined([shard["candidate"] for shard in shards], "outcome")
    return [word not in (NON_ADAPTIVE, MISCLASSIFIED) for word in outcome]


def predicted(parts: Sequence[Mapping[str, Any]], side: str, spare: int | None = None) -> Check:
    """Some gradients that the audit has of a side must predict it on each of its robust images, but for a tenth, and
    for no more than a claim can `spare`."""
    name, outcome = f"gradients predict the {side}", joined(parts, "outcome")
    robust = outcome.count(ROBUST)
    if robust <= (POINT * len(outcome) if spare is None else min(POINT * len(outcome), spare)):
        return Check(name, None, f"{robust} of {len(outcome)} images are robust, too few to matter")
    left = sum(min(part["masked"].values()) for part in parts)
    views = max((part["masked"] for part in parts), key=len)
    least = f"at least {100 - 100 * PREDICTED:.0f} % needed"
    text = f"some do on {robust - left} of {robust} robust images, {least} ({', '.join(views)})"
    if spare is not None and left > spare:
        limit = f"the claim holds only if at most {spare} of the other {left} could be broken"
        return Check(name, False, f"{text}, and {limit}")
    return Check(name, left <= PREDICTED * robust, text)


def from_afar(shards: Sequence[Mapping[str, Any]]) -> Check:
    """Attacks that start far from the image, along the boundary or by the predicted class alone, must not break more
    than a tenth of the gained images: what logits say near the image cannot mislead them."""
    name, parts = "attacks that start far away add nothing", [shard["candidate"] for shard in shards]
    attacked, outcome = sum(shard.get("from_afar", 0) for shard in shards), joined(parts, "outcome")
    if not attacked:
        return Check(name, None, "no gain would be claimed")
    ran = [stage for stage in BEFORE_GAIN if any(stage in part["gradients"] for part in parts)]
    broken = sum(map(outcome.count, ran))
    by = " and ".join(f"{outcome.count(stage)} by {stage}" for stage in ran)
    text = f"of {attacked} gained images {broken} are broken: {by}"
    return Check(name, broken <= max(1, PREDICTED * attacked), text)


def black_box(shards: Sequence[Mapping[str, Any]], side: str) -> Check:
    """AutoAttack with full Square, after everything else, must break neither a point of all images nor a tenth of
    those that it attacked."""
    own, opposite = (joined([shard[name] for shard in shards], "outcome") for name in (side, *(set(SIDES) - {side})))
    broken = own.count(FULL)
    attacked = broken + sum(a == ROBUST != b for a, b in zip(own, opposite, strict=True))
    text = f"of the {attacked} images that decide it breaks {broken} more; n = {len(own)}"
    few = broken <= min(POINT * len(own), max(1, PREDICTED * attacked))
    return Check(f"AutoAttack adds nothing on the {side}", few, text)


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
    that decide: those that are robust on one side only. All of them but AutoAttack search on the classifier itself,
    not on a folded copy: they are here to see what others were misled about.
    """

    def __init__(self, pair: Pair, images: Callable[[list[int]], Tensor], count: int, threat: Threat, plan: Plan):
        self.pair, self.images, self.count, self.threat, self.plan = pair, images, count, threat, plan
        self.gained: frozenset[int] = frozenset()
        self._copies: dict[str, dict[str, Classifier]] = {}

    def before_gain(self, shard: Shard, before: Mapping[str, Any], watch: Callable[[str], None]) -> dict[str, Any]:
        """The shard's sides after the attacks from far away on the candidate's first gained images."""
        started, sides = time.perf_counter(), self._sides(shard, before, watch)
        chosen = {place for place, at in enumerate(shard.ids.tolist()) if at in self.gained}
        candidate = sides["candidate"]
        for stage, attack in self.plan.before_gain(self.threat).items():
            candidate.attack(stage, candidate.side.classifier, attack, seed=self.plan.seed, only=chosen)
        for name, side in sides.items():
            side.masked = dict(before[name]["masked"])  # these attacks ask for no gradients near the images
        summaries = {name: side.summary() for name, side in sides.items()}
        return {**summaries, "from_afar": len(chosen), "seconds": time.perf_counter() - started}

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
    found["from_afar"] = before.get("from_afar", 0) + after.get("from_afar", 0)  # images attacked from far away
    for side in SIDES:
        old, new = before[side], after[side]
        # Broken stays broken, whoever computed the shard, and from whatever it knew.
        outcome = [b if a == ROBUST else a for a, b in zip(old["outcome"], new["outcome"], strict=True)]
        robust = {at for at, word in enumerate(outcome) if word == ROBUST}
        stopped = {**old["early_stopped"], **new["early_stopped"]}
        found[side] = {
            **old,
            "outcome": outcome,
            "notes": [*old["notes"], *new["notes"]],
            "forwards": old["forwards"] + new["forwards"],
            "backwards": [a + b for a, b in zip(old["backwards"], new["backwards"], strict=True)],
            "gradients": {**old["gradients"], **new["gradients"]},
            "masked": new["masked"],  # on the images that are robust now
            "early_stopped": {stage: sorted(robust.intersection(at)) for stage, at in stopped.items()},
            # Averaged gradients stop early on no image.
            "always_early_stopped": 0
            if AVERAGED in new["gradients"]
            else min(old["always_early_stopped"], len(robust)),
        }
    return found
