"""The four attacks of AutoAttack's standard version."""

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack
from lipforge.attacks.fab import FAB
from lipforge.attacks.square import Square
from lipforge.errors import InputError
from lipforge.types import Norm

TARGETS = 9

NO_FAB = "fab does not know l1 and was left out; the reference runs it"


def standard_attacks(classes: int, norm: Norm = "linf") -> tuple[Attack, ...]:
    """APGD-CE, APGD-T, FAB-T and Square, with the losses and targets that a model with that many classes allows.

    For l1, as in the reference, APGD-CE has five restarts and APGD-T five targets; FAB does not know l1 and is left
    out.
    """
    if classes < 2:
        raise InputError(f"the model must have at least 2 classes, got {classes}")
    targets = min(TARGETS, classes - 1)
    loss = "dlr" if classes >= 4 else "margin"
    if norm == "l1":
        return APGD(restarts=5), TargetedAPGD(targets=min(5, targets), loss=loss), Square()
    return APGD(), TargetedAPGD(targets=targets, loss=loss), FAB(targets=targets), Square()
