"""Which candidates are worth trying, and which of those that were tried is chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lipforge.forge import TTA
from lipforge.results.improve import CandidateScore
from lipforge.statistics import Comparison, counts_above, holm, likely_limits
from lipforge.text import points_text

NOTHING = "nothing"
WORTH = 0.005  # a part that makes fewer images than this robust, as a share of all, is not worth what it costs
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Candidate:
    """Fitted parts by name, such as "head", and test-time augmentation; neither is the base."""

    fitted: tuple[str, ...] = ()
    tta: TTA | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self.fitted, *([] if self.tta is None else [str(self.tta)]))

    @property
    def label(self) -> str:
        return " + ".join(self.parts) or NOTHING

    @property
    def cost(self) -> int:
        """Forward passes per image."""
        return 1 if self.tta is None else self.tta.cost


def combinations(
    tried: Mapping[Candidate, CandidateScore], ttas: Sequence[TTA], min_clean: float | None = None
) -> list[Candidate]:
    """What is left to try after every part alone and the first of `ttas`, from cheap to expensive: the parts that
    helped together, and each set of transforms alone, with each of these parts, and with all of them."""
    helped = [one.fitted for one, score in tried.items() if one.fitted and _helps(score, min_clean)]
    together = tuple(name for fitted in helped for name in fitted)
    fits = [*helped, *([together] if len(helped) > 1 else [])]
    found = [Candidate(together), *(Candidate(fitted, tta) for tta in ttas for fitted in ((), *fits))]
    return [candidate for candidate in found if candidate not in tried]


def best_so_far(tried: Mapping[Candidate, CandidateScore], min_clean: float | None) -> CandidateScore | None:
    """The candidate with most robust images of those that may be chosen; the base is one of them."""
    allowed = [score for score in tried.values() if score.status != "stopped" and may_be_chosen(score, min_clean)]
    return max(allowed, key=lambda score: score.robust_count, default=None)


def corrected(scores: Sequence[CandidateScore]) -> list[CandidateScore]:
    """The scores with the p-values of all candidates corrected for each other."""
    changes = [score.robust_change for score in scores if score.robust_change is not None]
    values = iter(holm([change.p_value for change in changes]))
    return [score if score.robust_change is None else replace(score, p_value=next(values)) for score in scores]


def choose(scores: Sequence[CandidateScore], min_clean: float | None) -> tuple[CandidateScore, str]:
    """The candidate to use, and why: of those whose gain survives the correction the one with most robust images, or
    a cheaper one that has nearly (WORTH) as many."""
    base, *others = scores
    allowed = [score for score in others if score.status == "attacked" and may_be_chosen(score, min_clean)]
    sure = [score for score in allowed if _gains(score) and _p_value(score) <= SIGNIFICANT]
    if not sure:
        return base, _why_nothing(others, allowed, min_clean)
    most = max(score.robust_count for score in sure)
    near = [score for score in sure if score.robust_count >= most - WORTH * score.count]
    best = min(near, key=lambda score: (score.cost, len(score.parts), -score.robust_count))
    change, clean = best.robust_change, best.clean_change
    assert change is not None
    assert clean is not None
    passes = "1 forward pass" if best.cost == 1 else f"{best.cost} forward passes"
    return best, (
        f"{best.label}: {points_text(change.difference, change.interval)} points robust, "
        f"{points_text(clean.difference, clean.interval)} clean on {best.count} validation images, {passes} per image; "
        f"p = {best.p_value:.2g} {_after(others)}"
    )


def clean_cost(best: CandidateScore) -> list[str]:
    """A note if the choice costs clean accuracy, or seems to."""
    clean = best.clean_change
    if clean is None or (clean.interval[1] >= 0 and clean.difference > -WORTH):
        return []
    return [
        f"{best.label} changes clean accuracy by {points_text(clean.difference, clean.interval)} points; "
        "min_clean refuses candidates below a clean accuracy"
    ]


def may_be_chosen(score: CandidateScore, min_clean: float | None) -> bool:
    """Whether a candidate is reliable and has enough clean accuracy; the base always may."""
    clean_enough = min_clean is None or score.clean_accuracy >= min_clean
    return score.status == "base" or (clean_enough and not score.unreliable)


def _helps(score: CandidateScore, min_clean: float | None) -> bool:
    change = score.robust_change
    helps = score.status == "attacked" and change is not None and change.difference >= WORTH
    return helps and may_be_chosen(score, min_clean)


def _p_value(score: CandidateScore) -> float:
    assert score.p_value is not None
    return score.p_value


def _gains(score: CandidateScore) -> bool:
    return score.robust_change is not None and score.robust_change.difference > 0


def _after(others: Sequence[CandidateScore]) -> str:
    return f"after correction for {len(others)} candidate{'s' if len(others) > 1 else ''}"


def _why_nothing(others: Sequence[CandidateScore], allowed: Sequence[CandidateScore], min_clean: float | None) -> str:
    gaining = [score for score in allowed if _gains(score)]
    if not gaining:
        lost = "" if min_clean is None else f" with a clean accuracy of {100 * min_clean:g} % or more"
        doubtful = "reliable " if any(score.unreliable for score in others) else ""
        return f"nothing: no {doubtful}candidate{lost} makes more validation images robust than the base"
    best = max(gaining, key=lambda score: score.robust_count)
    change = best.robust_change
    assert change is not None
    return (
        f"nothing: the best, {best.label}, changes robust accuracy by "
        f"{points_text(change.difference, change.interval)} points, which may be chance "
        f"(p = {best.p_value:.2g} {_after(others)}); {_needed(change, len(others))}"
    )


def _needed(change: Comparison, candidates: int) -> str:
    """How many images would probably show this gain after the correction, if these shares stay as they are."""
    counts = counts_above(change.count)
    shares = change.gained / change.count, change.lost / change.count
    shown = likely_limits(*shares, counts, confidence=1 - SIGNIFICANT / candidates)[0] > 0
    if not shown.any():
        return "a million validation images would probably not show it"
    return f"if it is as large as it looks, about {counts[shown.argmax()]:,} validation images would probably show it"
