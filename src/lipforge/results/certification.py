"""What a certification found: one claim per image, and the curve that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.statistics import clopper_pearson
from lipforge.text import duration, share_text


@dataclass(frozen=True)
class CertifiedImage:
    """What can be claimed of one image: inside the open l2 ball of `radius` the smoothed class is `prediction`.

    `prediction` is None where the smoothed classifier abstains. `selected` is the class that the first n0 draws chose;
    `hits` of `draws` more fell into it: its probability is at least `p_lower`, except with probability alpha.
    """

    index: int
    label: int
    prediction: int | None
    radius: float
    p_lower: float
    selected: int
    hits: int
    draws: int

    def certified(self, radius: float) -> bool:
        """Whether the image keeps its true class under every perturbation of l2 norm below `radius`."""
        return self.prediction == self.label and self.radius >= radius


@dataclass(frozen=True)
class CurvePoint:
    """Certified accuracy at one radius: how many images of all, their share and its 95 % interval."""

    radius: float
    certified: int
    accuracy: Share
    interval: tuple[Share, Share]


@dataclass(frozen=True)
class CertifyResult:
    """Certified accuracy of one smoothed classifier. Each image's claim is wrong with probability at most alpha, so of
    `count` claims at most alpha * count are expected to be. The curve's 95 % intervals are about the choice of images.
    """

    kind: ClassVar[str] = "certify"
    label: str
    model: str
    data: str
    sigma: float
    n0: int
    n: int
    alpha: float
    seed: int
    only_correct: bool
    count: int
    abstained: int
    forwards: int
    seconds: float
    curve: tuple[CurvePoint, ...]
    images: tuple[CertifiedImage, ...]
    model_digest: str = ""
    data_digest: str = ""
    change: Change | None = None

    def certified(self, radius: float) -> list[bool]:
        return [image.certified(radius) for image in self.images]

    def at(self, radius: float) -> CurvePoint:
        """Certified accuracy at any radius."""
        return curve_point(self.images, radius)

    def __str__(self) -> str:
        lines = [f"{self.label}: sigma {self.sigma:g}, n {self.n}, alpha {self.alpha:g}, {self.abstained} abstained"]
        for here in self.curve:
            share = share_text(here.accuracy, here.interval, 2)
            lines.append(f"  l2 {here.radius:.2f}  {share} {here.certified} of {self.count}")
        return "\n".join(lines)


def curve_point(images: Sequence[CertifiedImage], radius: float) -> CurvePoint:
    certified = sum(image.certified(radius) for image in images)
    return CurvePoint(radius, certified, certified / len(images), clopper_pearson(certified, len(images)))


@dataclass(frozen=True)
class CertifyCost:
    """Passes and seconds that a certification would take on this machine, in this process."""

    kind: ClassVar[str] = "certify_cost"
    count: int
    forwards: int
    seconds: float
    seconds_per_image: float
    probed_forwards: int
    label: str = ""
    change: Change | None = None

    def __str__(self) -> str:
        return f"{self.count} images, {self.forwards:,} forward passes, about {duration(self.seconds)}"
