"""What `improve` tried, and what it chose."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.results.evaluation import Note, PerOutcome
from lipforge.statistics import Comparison
from lipforge.types import Norm

CandidateStatus = Literal["base", "attacked", "stopped"]


@dataclass(frozen=True)
class CandidateScore(PerOutcome):
    """How one combination of parts did on the validation images, compared with the base image by image.

    `cost` are forward passes per image, `preparation` the seconds that fitting its parts took. `p_value` is that of the
    robust change after Holm's correction over all candidates. `status` is "base", "attacked" or "stopped" (clearly
    worse than another candidate after `count` images). One that is `unreliable`, because its gradients look masked,
    is not chosen. Intervals and p-values hold however often one looked. `change` is what the parts do to the model.
    """

    label: str
    parts: tuple[str, ...]
    cost: int
    preparation: float
    status: CandidateStatus
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    robust_accuracy: Share
    interval: tuple[Share, Share]
    clean_change: Comparison | None
    robust_change: Comparison | None
    p_value: Share | None
    forwards: int
    backwards: int
    seconds: float
    outcome: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    unreliable: bool = False
    change: Change | None = None


@dataclass(frozen=True)
class Improvement:
    """The parts to use, why, and all that was tried, base first; `chosen` is "nothing" where no gain is significant.

    `images` are digests of calibration and validation images: an audit on any of them does not test the choice.
    """

    kind: ClassVar[str] = "improve"
    chosen: str
    reason: str
    candidates: tuple[CandidateScore, ...]
    attack: str
    threat: str
    norm: Norm
    eps: float
    data: str
    seed: int
    count: int
    calibrated: int
    max_cost: int
    min_clean: float | None
    notes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    model_name: str = ""

    @property
    def best(self) -> CandidateScore:
        """The candidate that was chosen; the base where nothing was."""
        return next(score for score in self.candidates if score.label == self.chosen)

    def __str__(self) -> str:
        return self.reason
