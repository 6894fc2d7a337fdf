"""What is known of the robust accuracy itself: a certified lower bound, and the upper bound of an attack."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lipforge.errors import InputError
from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.results.evaluation import MISCLASSIFIED, Note
from lipforge.statistics import Comparison, check_same, clopper_pearson, paired
from lipforge.text import points, share_text
from lipforge.types import Norm

CERTIFIED, UNKNOWN = "certified", "unknown"
"""The outcomes of an image that the attack did not break: proven robust, or neither proven nor broken."""


@dataclass(frozen=True)
class BracketResult:
    """The robust accuracy of a classifier on these images lies between `certified_accuracy` and `robust_accuracy`.

    `outcome` has for each image "certified", "unknown", "misclassified" (before any attack) or the attack that broke
    it. `margin` is the lower bound on the margin over the whole ball, None where an image is misclassified: certified
    means above 0. Both accuracies are shares of all `count` images; their exact 95 % intervals are about the choice
    of images. `method` is crown or crown-ibp; `quick` images were certified by crown-ibp, which always comes first.
    `seconds` are those of the bounds, which were computed for `bounded` images; `attack_seconds` are those of the
    attack. Other fields are as in `RobustResult`.
    """

    kind: ClassVar[str] = "bracket"
    label: str
    model: str
    data: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    method: str
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    certified_accuracy: Share
    certified_interval: tuple[Share, Share]
    robust_accuracy: Share
    interval: tuple[Share, Share]
    outcome: tuple[str, ...]
    margin: tuple[float | None, ...]
    quick: int
    bounded: int
    seconds: float
    attack_seconds: float
    notes: tuple[Note, ...]
    model_digest: str = ""
    data_digest: str = ""
    change: Change | None = None

    @property
    def certified(self) -> list[bool]:
        return [word == CERTIFIED for word in self.outcome]

    @property
    def robust(self) -> list[bool]:
        """Which images the attack did not break."""
        return [word in (CERTIFIED, UNKNOWN) for word in self.outcome]

    @property
    def seconds_per_image(self) -> float:
        """The time of the bounds for an image that they were computed for."""
        return self.seconds / max(self.bounded, 1)

    def __str__(self) -> str:
        certified = share_text(self.certified_accuracy, self.certified_interval)
        attacked = share_text(self.robust_accuracy, self.interval)
        return (
            f"{self.label}: {self.threat}, certified {certified} <= truth <= {self.attack} {attacked}, "
            f"{self.outcome.count(UNKNOWN)} of {self.count} images unknown"
        )


@dataclass(frozen=True)
class BracketComparison:
    """Two brackets over the same images: the robust accuracy of the candidate minus that of the base is at least
    `least.difference` and at most `most.difference` on these images.

    `least` compares what is certified of the candidate with what the attack leaves of the base, image by image; `most`
    what the attack leaves of the candidate with what is certified of the base. `decides` names the model that is more
    robust on these images, None if the brackets overlap.
    """

    kind: ClassVar[str] = "bracket_comparison"
    base: str
    candidate: str
    data: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    method: str
    count: int
    least: Comparison
    most: Comparison
    decides: Literal["base", "candidate"] | None

    def __str__(self) -> str:
        known = f"between {points(self.least.difference)} and {points(self.most.difference)} points on these images"
        winner = {"base": self.base, "candidate": self.candidate, None: ""}[self.decides]
        said = f"{winner} is more robust, proven" if winner else "the brackets overlap, so they decide nothing"
        if self.least.difference == self.most.difference == 0:
            said = "both are equally robust, proven"
        return f"{self.candidate} against {self.base}: {known}; {said} (n = {self.count})"


def bracket_fields(outcome: tuple[str, ...]) -> dict[str, Any]:
    """Count and accuracies with intervals, from the outcome of each image.

    >>> bracket_fields(("certified", "unknown", "apgd-ce", "misclassified"))["robust_accuracy"]
    0.5
    """
    count, correct = len(outcome), len(outcome) - outcome.count(MISCLASSIFIED)
    certified, unknown = outcome.count(CERTIFIED), outcome.count(UNKNOWN)
    return {
        "count": count,
        "clean_accuracy": correct / count,
        "clean_interval": clopper_pearson(correct, count),
        "certified_accuracy": certified / count,
        "certified_interval": clopper_pearson(certified, count),
        "robust_accuracy": (certified + unknown) / count,
        "interval": clopper_pearson(certified + unknown, count),
        "outcome": outcome,
    }


def compare_brackets(base: BracketResult, candidate: BracketResult) -> BracketComparison:
    """What two brackets say of each other; data, attack, threat and seed must be the same."""
    check_same(base, candidate)
    if base.method != candidate.method:
        raise InputError(f"base and candidate must have the same method, got {base.method} and {candidate.method}")
    if base.count != candidate.count:
        raise InputError(f"base and candidate must cover the same images, got {base.count} and {candidate.count}")
    least, most = paired(base.robust, candidate.certified), paired(base.certified, candidate.robust)
    decides: Literal["base", "candidate"] | None = None
    if least.difference > 0 or most.difference < 0:
        decides = "candidate" if least.difference > 0 else "base"
    same = {
        name: getattr(base, name) for name in ("data", "attack", "threat", "norm", "eps", "seed", "method", "count")
    }
    return BracketComparison(base.label, candidate.label, **same, least=least, most=most, decides=decides)
