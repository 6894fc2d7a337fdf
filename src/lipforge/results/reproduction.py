"""A published table measured again: each number beside the paper's."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.records import Share
from lipforge.text import percent, share_text

ROUNDING = 5e-5  # published accuracies have two digits after the point, in percent


@dataclass(frozen=True)
class ReproducedRow:
    """One published accuracy and its measurement on `count` images, as shares, with the exact 95 % interval.

    `stated` is the ratio that the paper gives, which may be "unstated", and `ratio` the one that was measured, on the
    model `spec`. `inside` says whether the published accuracy lies in the interval, up to its rounding; None on
    stand-ins. Without a measurement all of them are None and `note` says why.
    """

    dataset: str
    model: str
    variant: str
    stated: str
    ratio: str
    attack: str
    eps: str
    published: Share
    measured: Share | None = None
    interval: tuple[Share, Share] | None = None
    inside: bool | None = None
    count: int = 0
    unreliable: bool = False
    spec: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """What was measured: "base", a ratio, and the variant if there is one."""
        return " ".join(filter(None, ("base" if self.ratio == "0" else self.ratio, self.variant)))

    @property
    def measured_text(self) -> str:
        if self.measured is None or self.interval is None:
            return "-"
        return share_text(self.measured, self.interval, 2)

    @property
    def mark(self) -> str:
        """What to see at once: nothing where the published accuracy lies in the interval."""
        words = ["unreliable"] if self.unreliable else []
        if self.inside is False and self.interval is not None:
            words.insert(0, "above" if self.published > self.interval[1] else "below")
        return ", ".join(words)

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.dataset, self.model, self.name, self.attack, self.eps.strip("0"))))
        return f"{what}: published {percent(self.published, 2)}, measured {self.measured_text}"


def is_inside(published: float, interval: tuple[float, float]) -> bool:
    """Whether a published share lies in an interval, up to the rounding of its two digits in percent.

    >>> is_inside(0.6004, (0.60044, 0.62)), is_inside(0.6004, (0.6005, 0.62))
    (True, False)
    """
    return interval[0] - ROUNDING <= published <= interval[1] + ROUNDING


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper, measured again. With `stand_in` small models and a few images took the place of the
    paper's, and the numbers mean nothing. `dtype` is what the models computed in."""

    kind: ClassVar[str] = "reproduction"
    table: str
    title: str
    stand_in: bool
    seed: int
    rows: tuple[ReproducedRow, ...]
    notes: tuple[str, ...] = ()
    name: str = ""  # of this result in a run directory
    dtype: str = "float32"

    @property
    def outside(self) -> tuple[ReproducedRow, ...]:
        """The rows whose published accuracy lies outside the measured interval."""
        return tuple(row for row in self.rows if row.inside is False)

    @property
    def missing(self) -> tuple[ReproducedRow, ...]:
        return tuple(row for row in self.rows if row.measured is None)
