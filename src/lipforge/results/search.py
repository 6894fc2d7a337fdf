"""What a search for the ratio found."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.results.evaluation import Note, PerOutcome
from lipforge.statistics import Comparison, clopper_pearson
from lipforge.types import Norm

Setting = float | Mapping[str, float]  # one ratio for all sites, or one for each group of sites

Status = Literal["base", "attacked", "stopped", "not attacked"]


@dataclass(frozen=True)
class RatioScore(PerOutcome):
    """How one ratio did; what was not measured is None.

    `status` is "base" (ratio 0), "attacked", "stopped" (significantly worse after `count` images) or "not attacked"
    (neither the best clean ratio nor a neighbour of it). Of the `count` images, `transferred` were broken by a point
    found for another ratio, `refined` by refining such a point, `attacked` were attacked in full, and `skipped` were
    counted as robust without that (see `lipforge.search.screen`). `rechecked` images would have been skipped but were
    attacked; `rechecked_broken` of them were broken. `against_base` is the comparison with ratio 0.
    """

    ratio: Setting
    label: str
    status: Status
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    clean_count: int
    count: int = 0
    robust_accuracy: Share | None = None
    interval: tuple[Share, Share] | None = None
    against_base: Comparison | None = None
    transferred: int = 0
    refined: int = 0
    attacked: int = 0
    skipped: int = 0
    rechecked: int = 0
    rechecked_broken: int = 0
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    outcome: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    change: Change | None = None

    @property
    def unsure(self) -> int:
        """How many skipped images may be broken after all: the 95 % upper limit from those that were rechecked."""
        if not self.skipped:
            return 0
        if not self.rechecked:
            return self.skipped
        return math.ceil(clopper_pearson(self.rechecked_broken, self.rechecked)[1] * self.skipped)

    @property
    def rank(self) -> tuple[int, float, float]:
        """What the choice goes by: robust images, then clean accuracy, then the smaller ratio."""
        ratios = self.ratio.values() if isinstance(self.ratio, Mapping) else (self.ratio,)
        return self.robust_count, self.clean_accuracy, -sum(ratios)


def best_of(scores: Sequence[RatioScore]) -> RatioScore:
    """The best of the settings that were attacked to the end, the base aside."""
    return max((score for score in scores if score.status == "attacked"), key=lambda score: score.rank)


@dataclass(frozen=True)
class SearchResult:
    """The ratio to use, why, and all that was measured on the way, base first.

    `chosen` is 0 where no ratio keeps more images robust than the base; `best` is then still the best of the others.
    `skip_above` and `recheck` are the settings of `choose_ratio`. `notes` are reasons not to trust the scores. `images`
    are digests of the images: an audit on any of them does not test the choice.
    """

    kind: ClassVar[str] = "search"
    chosen: Setting
    reason: str
    scores: tuple[RatioScore, ...]
    metric: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    data: str
    seed: int
    count: int
    skip_above: float | None
    recheck: float
    forwards: int
    backwards: int
    seconds: float
    notes: tuple[Note, ...] = ()
    images: tuple[str, ...] = ()

    @property
    def best(self) -> RatioScore:
        return best_of(self.scores)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes on the search, and those of the attacks on each ratio."""
        return (*map(str, self.notes), *(f"{score.label}: {note}" for score in self.scores for note in score.notes))

    def __str__(self) -> str:
        return self.reason
