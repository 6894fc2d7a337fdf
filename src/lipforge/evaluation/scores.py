"""What a search for the ratio found, and why it chose what it chose."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lipforge.attacks import square_notes
from lipforge.attacks.trial import ROBUST
from lipforge.evaluation.compare import Comparison, paired
from lipforge.evaluation.intervals import clopper_pearson
from lipforge.evaluation.results import merge_notes
from lipforge.evaluation.tally import FOUND
from lipforge.types import ratio_text

Setting = float | Mapping[str, float]
"""One ratio for all sites, or one for each group of sites."""

Status = Literal["base", "attacked", "stopped", "not attacked"]

HOPELESS = 0.01
"""A ratio is dropped after a round if it lost images to the best one and McNemar's exact p-value is below this."""


@dataclass(frozen=True)
class RatioScore:
    """How one ratio did; what was not measured is None.

    `status` is "base" (ratio 0), "attacked", "stopped" (hopeless after `count` images) or "not attacked" (neither the
    best clean ratio nor a neighbour of it). Of the `count` images `tried` fell to a point found for another ratio and
    `pushed` to a push from there, `attacked` were attacked in full, and `spared` were taken to stand by the rule of
    `lipforge.evaluation.contest`; of those that the rule would have spared, `checked` were attacked all the same, and
    `failed` of these fell. `against_base` is the paired comparison with ratio 0.
    """

    ratio: Setting
    label: str
    status: Status
    clean_accuracy: float
    clean_interval: tuple[float, float]
    clean_count: int
    count: int = 0
    robust_accuracy: float | None = None
    interval: tuple[float, float] | None = None
    against_base: Comparison | None = None
    tried: int = 0
    pushed: int = 0
    attacked: int = 0
    spared: int = 0
    checked: int = 0
    failed: int = 0
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    outcome: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def robust(self) -> list[bool]:
        """Whether each of the first `count` images stands."""
        return [word == ROBUST for word in self.outcome]

    @property
    def standing(self) -> int:
        """How many images stand."""
        return self.outcome.count(ROBUST)

    @property
    def unsure(self) -> int:
        """How many of the spared images may fall all the same: the 95 % upper limit from those that were checked."""
        if not self.spared:
            return 0
        return math.ceil(clopper_pearson(self.failed, self.checked)[1] * self.spared) if self.checked else self.spared

    @property
    def rank(self) -> tuple[int, float, float]:
        """What the choice goes by: images that stand, then clean accuracy, then the gentler setting."""
        ratios = self.ratio.values() if isinstance(self.ratio, Mapping) else (self.ratio,)
        return self.standing, self.clean_accuracy, -sum(ratios)


@dataclass(frozen=True)
class SearchResult:
    """The ratio to use, why, and all that was measured on the way, base first.

    `chosen` is 0 where no ratio keeps more images than the base does; `best` is then still the best of the others.
    """

    chosen: Setting
    reason: str
    scores: tuple[RatioScore, ...]
    metric: str
    attack: str
    threat: str
    norm: str
    eps: float
    data: str
    seed: int
    count: int
    near: float | None
    audit: float
    forwards: int
    backwards: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> RatioScore:
        """The best setting other than the base."""
        return best_of(self.scores)

    def __str__(self) -> str:
        return self.reason


def best_of(scores: Sequence[RatioScore]) -> RatioScore:
    """The best of the settings that were attacked to the end, without the base."""
    return max((score for score in scores if score.status == "attacked"), key=lambda score: score.rank)


def label_of(setting: Setting) -> str:
    """A setting as people write it.

    >>> label_of(0.0), label_of(2**-7), label_of({"layer1.*": 2**-7, "layer2.*": 0.0})
    ('base', '2^-7', 'layer1.*=2^-7,layer2.*=0')
    """
    if isinstance(setting, Mapping):
        return ",".join(f"{name}={ratio_text(ratio)}" for name, ratio in setting.items())
    return ratio_text(setting) if setting else "base"


def clean_score(setting: Setting, shards: Sequence[Mapping[str, Any]]) -> RatioScore:
    """The score of a setting of which only the clean images are known, from its share of each shard."""
    right = [found for shard in shards for found in shard["right"]]
    correct, count, seconds = sum(right), len(right), sum(shard["seconds"] for shard in shards)
    status: Status = "not attacked" if setting else "base"
    interval = clopper_pearson(correct, count)
    about = (setting, label_of(setting), status, correct / count, interval, count)
    return RatioScore(*about, forwards=count, seconds=seconds)


def robust_fields(shards: Sequence[Mapping[str, Any]], base: Sequence[bool]) -> dict[str, Any]:
    """The measured fields of a score, from its share of each shard; `base` says which images stand without forging."""
    outcome = tuple(word for shard in shards for word in shard["outcome"])
    stands = [word == ROBUST for word in outcome]
    counted = ("tried", "pushed", "attacked", "spared", "checked", "failed", "forwards", "backwards", "seconds")
    attacked, square = (sum(shard[name] for shard in shards) for name in ("attacked", "square"))
    return {
        "count": len(outcome),
        "outcome": outcome,
        "robust_accuracy": sum(stands) / len(stands),
        "interval": clopper_pearson(sum(stands), len(stands)),
        "notes": (*merge_notes(shards, attacked), *square_notes(square, max(attacked, 1))),
        "against_base": paired(base[: len(stands)], stands),
        **{name: sum(shard[name] for shard in shards) for name in counted},
    }


def neighbourhood(scores: Sequence[RatioScore]) -> list[RatioScore]:
    """Of scores in the order of their ratios, the best clean one first, then its neighbours."""
    best = max(range(len(scores)), key=lambda place: (scores[place].clean_accuracy, -place))
    return [scores[place] for place in (best, best - 1, best + 1) if 0 <= place < len(scores)]


def hopeful(scores: Sequence[RatioScore], shards: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[RatioScore]:
    """The scores that go on: the base, the best ratio so far, and all that chance may have put behind it."""
    stands = {score.label: stands_of(shards[score.label]) for score in scores}
    best = max(scores[1:], key=lambda score: sum(stands[score.label]))
    return [
        score
        for score in scores
        if score in (scores[0], best) or paired(stands[best.label], stands[score.label]).p_value >= HOPELESS
    ]


def stands_of(shards: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether each image stands, from one setting's share of each shard."""
    return [word == ROBUST for shard in shards for word in shard["outcome"]]


def choose(scores: Sequence[RatioScore]) -> tuple[Setting, str]:
    """The setting to use, and one sentence that says why, with counts."""
    base, best = scores[0], best_of(scores)
    difference = best.against_base
    assert difference is not None
    rest = [score for score in scores[1:] if score.outcome and score is not best]
    others = ", ".join(f"{_standing(score)} at {score.label}" for score in rest)
    found = (
        f"{_standing(best)} images stand at {best.label}, {base.standing} at base "
        f"(gained {difference.gained}, lost {difference.lost}, p = {difference.p_value:.2g})"
        + (f"; {others}" if others else "")
    )
    if best.standing <= base.standing:
        return 0.0, f"chose 0, no forging: no ratio keeps more images than base; {found}"
    doubt = "" if difference.decided else ", which this number of images cannot tell from chance"
    if best.standing - best.unsure <= base.standing:
        doubt += f", and up to {best.unsure} of its spared images may fall"
    return best.ratio, f"chose {best.label}: it keeps the most images{doubt}; {found}"


def doubts(scores: Sequence[RatioScore]) -> list[str]:
    """What a reader should know before trusting the scores."""
    found = [
        f"{score.label}: {score.failed} of {score.checked} images that were spared fell when attacked all the same, "
        f"so its robust accuracy is too high; near=None attacks every image"
        for score in scores
        if score.failed
    ]
    found += [
        f"{score.label}: {score.spared} images were spared; {score.failed} of {score.checked} such images fell when "
        f"attacked all the same, so up to {score.unsure} more may fall (95 %)"
        if score.checked
        else f"{score.label}: {score.spared} images were spared and none of their kind was checked: all may fall"
        for score in scores
        if score.spared and not score.failed
    ]
    found += [f"{score.label}: {note}" for score in scores for note in score.notes]
    return [*found, "the choice was made on these images: measure the chosen ratio again on others"]


def both(first: RatioScore, second: RatioScore) -> RatioScore:
    """The base after two contests: what fell in either has fallen; the second has the cost of both."""
    words = zip(first.outcome, second.outcome, strict=True)
    outcome = tuple(then if now == ROBUST else now for now, then in words)
    stands = outcome.count(ROBUST)
    accuracy, interval = stands / len(outcome), clopper_pearson(stands, len(outcome))
    tried = sum(word.startswith(FOUND) for word in outcome)
    return replace(second, outcome=outcome, robust_accuracy=accuracy, interval=interval, tried=tried)


def rebased(scores: Sequence[RatioScore]) -> list[RatioScore]:
    """The scores, compared with the first as it is now."""
    base = scores[0].robust
    return [
        replace(score, against_base=paired(base[: score.count], score.robust))
        if score.ratio and score.outcome
        else score
        for score in scores
    ]


def by_ratio(score: RatioScore) -> tuple[bool, float]:
    """Single ratios from small to large, then the mappings in the order they were tried."""
    return isinstance(score.ratio, Mapping), 0.0 if isinstance(score.ratio, Mapping) else score.ratio


def _standing(score: RatioScore) -> str:
    return f"{score.standing} of {score.count}"
