"""One side of an audit on one shard of images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks import Attack, notes_and_square
from lipforge.attacks.checks import PROBE
from lipforge.attacks.queries import is_fooled
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.audit.stages import LONGER, PLAIN
from lipforge.audit.subjects import Side
from lipforge.types import Classifier, Threat


@dataclass
class Front:
    """One side of the audit on one shard: what stands, how each image fell, and what that took."""

    side: Side
    x: Tensor
    y: Tensor
    ids: Tensor
    threat: Threat
    images: Tensor
    watch: Callable[[str], None]
    outcome: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    forwards: int = 0
    square: int = 0
    gradients: dict[str, int] = field(default_factory=dict)
    given_up: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backwards = torch.zeros(len(self.x), dtype=torch.int64)
        self.forwards = len(self.x)
        self.outcome = [ROBUST if right else MISCLASSIFIED for right in self.judge(self.x)]

    @property
    def standing(self) -> list[int]:
        return [place for place, outcome in enumerate(self.outcome) if outcome == ROBUST]

    @property
    def effort(self) -> float:
        """Gradients per image that stands."""
        return float(self.backwards[self.standing].double().mean()) if self.standing else 0.0

    @property
    def best_name(self) -> str:
        """The view whose gradients broke most here so far; the first of equals."""
        return max(self.side.surrogates, key=self.outcome.count)

    @property
    def best(self) -> Classifier:
        """That view itself, for the attacks that use only one."""
        return self.side.surrogates[self.best_name]

    def run(self, stage: str, classifier: Classifier, attack: Attack, *, seed: int) -> None:
        """Attack what stands; a success counts only if the side's own classifier confirms it."""
        places = self.standing
        if not places:
            return
        self.watch(stage)
        at = torch.tensor(places, device=self.x.device)
        result = attack.run(classifier, self.x[at], self.y[at], threat=self.threat, seed=seed, sample_ids=self.ids[at])
        self.images[at] = result.images
        self.forwards += int(result.forwards.sum())
        self.backwards[places] += result.backwards.cpu()
        self.gradients[stage] = self.gradients.get(stage, 0) + int(result.backwards.sum())
        self.given_up[stage] = {place for place, early in zip(places, result.given_up.tolist(), strict=True) if early}
        notes, _ = notes_and_square(result)
        self.notes += [(stage, note) for note in notes]
        if stage == PLAIN:
            self.square = sum(outcome == PROBE or outcome.startswith("square") for outcome in result.outcome)
        for place, outcome in zip(places, result.outcome, strict=True):
            if outcome != ROBUST:
                self.outcome[place] = stage

    def judge(self, images: Tensor) -> list[bool]:
        """Which images (N,) the side's classifier gets right; labels that it does not know and NaN are errors."""
        right: list[bool] = (~is_fooled(self.side.classifier, images, self.y)).tolist()
        return right

    def sheet(self) -> dict[str, Any]:
        """What the report needs of this side, ready for JSON.

        `given_up` counts by stage the images that stand at the end and that the stage gave up before its last attack;
        `unpursued` counts those that every view gave up, the plain attack among them.
        """
        standing = set(self.standing)
        views = [self.given_up.get(stage, set()) for stage in (PLAIN, *self.side.surrogates, LONGER)]
        return {
            "outcome": self.outcome,
            "notes": self.notes,
            "given_up": {stage: len(places & standing) for stage, places in self.given_up.items()},
            "unpursued": len(standing.intersection(*views)),
            "square": self.square,
            "forwards": self.forwards,
            "backwards": self.backwards.tolist(),
            "gradients": self.gradients,
        }
