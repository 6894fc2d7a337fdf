"""What an attack is, and several of them in a row."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from lipforge.attacks.checks import gradient_notes, square_notes
from lipforge.attacks.queries import checked_ids
from lipforge.attacks.state import AttackResult, AttackState
from lipforge.errors import InputError
from lipforge.logs import warn
from lipforge.memory import in_batches
from lipforge.results import MISCLASSIFIED, merge_notes
from lipforge.results.evaluation import merge_stages
from lipforge.types import Classifier, Threat


class AttackWarning(UserWarning):
    """There is a reason not to trust the result of an attack."""


class Attack(Protocol):
    """A frozen dataclass that turns images into adversarial images; the norm and eps come with the call.

    A new attack derives from this class, has a `name` and writes `attack`; `run` and the call come for free.
    `sample_ids` (N,) number the images in their data set: random numbers depend on (seed, attack, id) only, so they
    are the same in any batch. Without them the images are numbered 0 .. N - 1.
    """

    name: ClassVar[str]
    looks_at_outputs: ClassVar[bool] = False  # whether it asks by itself if the model is random, or ends in a softmax

    def attack(self, state: AttackState) -> None:
        """Work on the images of `state` that are still robust; what is misclassified as it was given is not."""
        ...

    def prepared(self, model: Classifier, images: Tensor) -> Classifier:
        """What to hand to `run` instead of the model, made once for all batches; `images` show what the model takes.

        It is the model itself, or `Prepared` with a folded copy by an attack that would otherwise fold in every batch.
        """
        return model

    def at(self, rows: slice) -> "Attack":
        """The attack for these rows of the batch: itself, unless it holds something for each image."""
        return self

    def run(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | Sequence[int] | None = None,
        watch: Callable[[str], None] | None = None,
        clean_logits: Tensor | None = None,
        minimise: bool = False,
    ) -> AttackResult:
        """Images (N, C, H, W) inside the threat in the order of `x`, with what became of each and what it cost.

        `watch` is told the name of each attack as it begins, for whoever shows progress. `clean_logits` (N, K) are
        those of this model on `x`, from a caller who knows them: they are then neither computed nor counted. With
        `minimise` a minimum-norm attack goes on after it broke an image, and looks for the nearest point that does.
        Where memory runs out, the images are attacked in smaller batches: see `lipforge.memory`.
        """
        ids = checked_ids(model, x, y, sample_ids)
        if clean_logits is not None and len(clean_logits) != len(x):
            raise InputError(f"clean_logits must be (N, K), one row per image, got {tuple(clean_logits.shape)}")

        def attacked(rows: slice) -> AttackResult:
            state = AttackState(
                model, x[rows], y[rows], threat=threat, seed=seed, sample_ids=ids[rows], minimise=minimise
            )
            state.announce = watch or state.announce
            if len(state.x):
                if clean_logits is not None:
                    state.use_clean_logits(clean_logits[rows])
                state.announce(self.name)
                state.clean_logits()
                self.at(rows).attack(state)
                state.ask_model()
                state.notes += [*square_notes(state.stages, len(state.x)), *gradient_notes(state)]
            return state.result(self.name)

        return merged_results(in_batches(attacked, x, "attack"))

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Only the images of `run`; its notes become warnings, because they would be lost."""
        result = self.run(model, x, y, threat=threat, seed=seed, sample_ids=sample_ids)
        for note in merge_notes(result.notes, len(x)):
            warn(str(note), AttackWarning)
        return result.images


@dataclass(frozen=True)
class Cascade(Attack):
    """All of `attacks` in order; an image that one of them breaks, confirmed in another batch, is not attacked again.

    Every attack starts anew from the clean image. The result has one stage for the clean images and one per attack.
    """

    name: ClassVar[str] = "cascade"
    attacks: tuple[Attack, ...]

    def __post_init__(self) -> None:
        if not self.attacks:
            raise InputError("a cascade needs at least one attack")

    def at(self, rows: slice) -> "Cascade":
        return replace(self, attacks=tuple(attack.at(rows) for attack in self.attacks))

    @property
    def looks_at_outputs(self) -> bool:  # type: ignore[override]  # each cascade has its own attacks
        return any(attack.looks_at_outputs for attack in self.attacks)

    def prepared(self, model: Classifier, images: Tensor) -> Classifier:
        """What the first attack wants: a folded copy that a later one makes is made for each batch."""
        return self.attacks[0].prepared(model, images)

    def attack(self, state: AttackState) -> None:
        state.close_stage("clean")
        for attack in self.attacks:
            if len(state.attackable()) == 0:
                return
            state.announce(spelled(attack))
            attack.attack(state)
            state.close_stage(spelled(attack))


def merged_results(parts: Sequence[AttackResult]) -> AttackResult:
    """One result of those for consecutive images."""
    if len(parts) == 1:
        return parts[0]
    names = ("images", "broken", "forwards", "backwards", "early_stopped", "margin", "distance")
    outcome = tuple(word for part in parts for word in part.outcome)
    correct = [len(part.outcome) - part.outcome.count(MISCLASSIFIED) for part in parts]
    return AttackResult(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in names},
        outcome=outcome,
        stages=merge_stages([(count, part.stages) for count, part in zip(correct, parts, strict=True)]),
        notes=merge_notes([note for part in parts for note in part.notes], len(outcome)),
    )


def check_least(attack: Attack, least: int, *names: str) -> None:
    """Raise unless all of these settings are at least that."""
    for name in names:
        if getattr(attack, name) < least:
            raise InputError(f"{name} must be at least {least}, got {getattr(attack, name)}")


def spelled(attack: Attack) -> str:
    """The attack's name, and the settings that differ from the default."""
    changed = []
    for field in dataclasses.fields(cast(Any, attack)):
        value = getattr(attack, field.name)
        if field.repr and value != field.default:
            changed.append(f"{field.name}={str(value).lower() if isinstance(value, bool) else value}")
    return attack.name + (":" + ",".join(changed) if changed else "")
