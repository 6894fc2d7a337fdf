"""Whether a classifier can be certified at a sigma at all: its accuracy under noise, on a few dozen images."""

from dataclasses import dataclass

import torch

from lipforge.batching import LabelledSource
from lipforge.certification.smoothing import Smoothing, positions_of, sure_logits
from lipforge.runs import Experiment
from lipforge.text import percent
from lipforge.types import Classifier

PILOT, PILOT_IMAGES, PILOT_DRAWS = "smoothing-pilot", 48, 4
LEAST_KEPT, FEWEST = 0.75, 20
"""A net that was trained with Gaussian noise keeps nearly all of its accuracy under it; one that keeps less was not."""


@dataclass(frozen=True)
class NoisePilot:
    """How often `count` images are classified correctly, clean and with Gaussian noise of deviation sigma; `noisy` is
    the mean over a few draws per image."""

    sigma: float
    count: int
    clean: float
    noisy: float

    @property
    def untrained(self) -> bool:
        """Whether the classifier was evidently not trained for this sigma; fewer than 20 images are no evidence."""
        return self.count >= FEWEST and self.noisy < LEAST_KEPT * self.clean

    def __str__(self) -> str:
        found = (
            f"accuracy is {percent(self.clean)} % clean and {percent(self.noisy)} % under Gaussian noise of sigma "
            f"{self.sigma:g} ({self.count} images, {PILOT_DRAWS} draws each)"
        )
        advice = (
            "; it was evidently not trained for this sigma, so certificates will say little: take a smaller sigma, "
        )
        return f"{found}{advice}or a model that was trained with this noise" if self.untrained else found


@torch.no_grad()
def noise_pilot(
    classifier: Classifier,
    data: LabelledSource,
    *,
    sigma: float = 0.25,
    skip: int = 1,
    limit: int | None = None,
    seed: int = 0,
) -> NoisePilot:
    """Clean and noisy accuracy on the first images that `certify` with these arguments would certify, at most 48."""
    smoothing, experiment = Smoothing(sigma, seed=seed), Experiment.open(data, classifier)
    shard = experiment.read(positions_of(experiment.data, skip, limit)[:PILOT_IMAGES])
    draws = (torch.full_like(shard.ids, draw) for draw in range(PILOT_DRAWS))
    copies = [shard.x, *(smoothing.noisy(shard.x, shard.ids, draw, PILOT) for draw in draws)]
    clean, *noisy = (float((sure_logits(classifier, x).argmax(dim=1) == shard.y).double().mean()) for x in copies)
    return NoisePilot(sigma, len(shard.x), clean, sum(noisy) / PILOT_DRAWS)
