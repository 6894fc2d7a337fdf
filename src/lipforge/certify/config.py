"""How to smooth, and how sure to be."""

import math
from dataclasses import dataclass

from lipforge.certify.binomial import check_alpha, lower_bound, radius_of
from lipforge.certify.draws import MOST_DRAWS, Noise
from lipforge.errors import InputError


@dataclass(frozen=True)
class Smoothing:
    """How to smooth and how sure to be; the defaults are those of Cohen et al. on CIFAR-10.

    `only_correct` estimates nothing for images whose selected class is wrong: they abstain. That cannot change
    certified accuracy, which counts right answers only.
    """

    sigma: float = 0.25
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    seed: int = 0
    only_correct: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise InputError(f"sigma must be a number above 0, got {self.sigma}; Cohen et al. use 0.12, 0.25, 0.5, 1")
        for name in ("n0", "n"):
            if not 1 <= getattr(self, name) < MOST_DRAWS:
                raise InputError(f"{name} must lie in [1, 2^32), got {getattr(self, name)}")
        check_alpha(self.alpha)

    @property
    def noise(self) -> Noise:
        return Noise(self.sigma, self.seed)

    @property
    def largest_radius(self) -> float:
        """What is claimed where every draw falls into one class: more cannot be had from n draws."""
        return radius_of(lower_bound(self.n, self.n, self.alpha), self.sigma)
