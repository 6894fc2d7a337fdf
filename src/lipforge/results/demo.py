"""What the demo found, and the pictures of a report."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.results.audit import Verdict
from lipforge.results.change import Change
from lipforge.statistics import Comparison


@dataclass(frozen=True)
class DemoResult:
    """The summary of a demo; the rest is in the results beside it. It is `unreliable` if the evaluation of the forged
    model is. `chosen` and `reason` are those of `improve`, and `improved_*` is the audit of its choice on `judged`
    images. `change` is that of the forged model."""

    kind: ClassVar[str] = "demo"
    model: str
    data: str
    threat: str
    attack: str
    sites: int
    calibrated_on: int
    ratio: float
    count: int
    clean_base: float
    clean_forged: float
    base: float
    forged: float
    difference: Comparison
    verdict: Verdict
    sentence: str
    failed_checks: tuple[str, ...]
    unreliable: bool = False
    chosen: str = ""
    reason: str = ""
    improved_verdict: Verdict = "undecided"
    improved_sentence: str = ""
    judged: int = 0
    change: Change | None = None


@dataclass(frozen=True)
class GalleryItem:
    """One image: its true class, what the model predicted before and after, and three PNGs in base64."""

    index: int
    label: str
    before: str
    after: str
    clean: str
    perturbation: str
    adversarial: str

    @property
    def broken(self) -> bool:
        return self.before == self.label != self.after


@dataclass(frozen=True)
class Gallery:
    """Some images of an evaluation; the perturbation is drawn `magnification` times its size around grey."""

    kind: ClassVar[str] = "gallery"
    title: str
    magnification: float
    largest: float
    items: tuple[GalleryItem, ...]
