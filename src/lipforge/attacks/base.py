"""What an attack is."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

from torch import Tensor

from lipforge.attacks.checks import gradient_notes
from lipforge.attacks.queries import checked_ids, is_fooled
from lipforge.attacks.result import AttackResult
from lipforge.attacks.trial import Trial
from lipforge.types import Classifier, Threat

__all__ = ["Attack", "AttackWarning", "is_fooled", "spelled"]


class AttackWarning(UserWarning):
    """There is a reason to doubt the result of an attack."""


class Attack(Protocol):
    """A frozen dataclass that turns images into adversarial images; the norm and eps come with the call.

    A new attack derives from this class, has a `name` and writes `attack`; `run` and the call come for free.
    `sample_ids` (N,) number the images in their data set: random numbers depend on (seed, attack, id) only, so they
    are the same in any batch. Without them the images are numbered 0 .. N - 1.
    """

    name: ClassVar[str]

    def attack(self, trial: Trial) -> None:
        """Work on the images of `trial` that stand; what is misclassified as it was given no longer does."""
        ...

    def run(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | None = None,
        watch: Callable[[str], None] | None = None,
    ) -> AttackResult:
        """Images (N, C, H, W) inside the threat in the order of `x`, with what became of each and what it cost.

        `watch` is told the name of each attack as it begins, for whoever shows progress.
        """
        ids = checked_ids(model, x, y, sample_ids)
        trial = Trial(model, x, y, threat=threat, seed=seed, sample_ids=ids)
        trial.watch = watch
        if len(x):
            trial.announce(self.name)
            trial.clean_logits()
            self.attack(trial)
            trial.ask_model()
            trial.notes += gradient_notes(trial)
        return trial.result(self.name)

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Only the images of `run`; its notes become warnings, because they would be lost."""
        result = self.run(model, x, y, threat=threat, seed=seed, sample_ids=sample_ids)
        for note in result.notes:
            warnings.warn(note, AttackWarning, stacklevel=2)
        return result.images


def spelled(attack: Attack) -> str:
    """The attack's name, and the settings that differ from the default."""
    changed = [
        f"{field.name}={_write(getattr(attack, field.name))}"
        for field in dataclasses.fields(cast(Any, attack))
        if getattr(attack, field.name) != field.default
    ]
    return attack.name + (":" + ",".join(changed) if changed else "")


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
