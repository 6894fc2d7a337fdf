"""AutoAttack (Croce and Hein 2020): the attacks, the order and the budgets of the reference, without its wasted work.

What differs from the reference, and why: images leave inside every attack when they are fooled; clean logits are
computed once; FAB stops inside eps and asks the model once per step; random numbers depend on the image's id, not on
the batch; Square's windows reach the last row and column and are drawn for each image by itself; APGD compares its
first step with its start; a random model's logits are the mean over the repeats, not the last of them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack
from lipforge.attacks.cascade import Cascade
from lipforge.attacks.checks import by_square, class_notes, model_notes, square_notes
from lipforge.attacks.fab import FAB
from lipforge.attacks.fast import Escalate, Rounds, settle_disputes
from lipforge.attacks.prepare import Precision
from lipforge.attacks.standard import NO_FAB, TARGETS, standard_attacks
from lipforge.attacks.trial import Trial
from lipforge.errors import InputError
from lipforge.types import Norm

Version = Literal["standard", "plus", "rand", "fast"]


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The cascade of a version of AutoAttack, fitted to the model's number of classes, with all of its warnings.

    With `prepare` it searches on a quicker stand-in where there is one, made for each batch (see `prepare`), under
    autocast if `precision` says so. A model that is `Prepared` already is taken as it is.
    """

    name: ClassVar[str] = "autoattack"
    version: str = "standard"
    prepare: bool = True
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.version not in get_args(Version):
            raise InputError(f"version must be one of {', '.join(get_args(Version))}, got {self.version!r}")
        if self.precision not in get_args(Precision):
            raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if self.precision != "float32" and not self.prepare:
            raise InputError(f"precision {self.precision} is that of a prepared model; leave prepare at true")

    def attack(self, trial: Trial) -> None:
        """Check the model, run the cascade, and note what is suspicious."""
        classes = trial.clean_logits().shape[1]
        trial.notes += model_notes(trial, random_expected=self.version == "rand")
        if self.version in ("standard", "plus") or classes < 3:
            trial.notes += class_notes(classes, targets=TARGETS)
        if self.version == "standard" and trial.threat.norm == "l1":
            trial.notes.append(NO_FAB)
        if self.prepare and self.version != "rand":
            trial.prepare(cast(Precision, self.precision))
        cascade = self.cascade(classes, trial.threat.norm)
        cascade.attack(trial)
        settle_disputes(trial, cascade)
        trial.notes += square_notes(by_square(trial.stages), len(trial.x))

    def cascade(self, classes: int, norm: Norm = "linf") -> Cascade:
        """The attacks for a model with that many classes.

        >>> [attack.name for attack in AutoAttack().cascade(10).attacks]
        ['apgd', 'apgd-t', 'fab', 'square']
        """
        standard = standard_attacks(classes, norm)
        dlr = "dlr" if classes >= 3 else "margin"
        if self.version == "standard":
            return Cascade(standard)
        if self.version == "plus":
            if norm == "l1":
                raise InputError('autoattack("plus") knows the norms linf and l2, got l1; use standard or fast')
            _, targeted, fab, square = standard
            untargeted = (APGD(restarts=5), APGD(loss=dlr, restarts=5), FAB(targets=0, restarts=5))
            return Cascade((*untargeted, square, targeted, fab))
        if self.version == "rand":
            return Cascade((APGD(repeats=20), APGD(loss=dlr, repeats=20)))
        nearest = TargetedAPGD(steps=20, targets=min(2, classes - 1), loss="margin", order="near")
        return Cascade((APGD(steps=20, loss="margin"), nearest, Rounds(targets=min(2, classes - 1)), Escalate()))


def autoattack(version: Version = "standard", *, prepare: bool = True, precision: Precision = "float32") -> AutoAttack:
    """AutoAttack in the version "standard", "plus" (more restarts), "rand" (for models with random outputs) or "fast".

    "fast" is our own cascade, from cheap to dear: 20 APGD steps on the margin, 20 toward each of the two nearest
    classes, then rounds of 50 toward the same two, on the images that are worth it (the stopping rule is that of
    `Rounds`). A short Square then looks for masked gradients, and suspicious images get the standard cascade. Images
    that the rule gave up are in the result's `given_up`.
    """
    return AutoAttack(version, prepare, precision)
