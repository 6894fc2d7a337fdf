"""The four attacks of AutoAttack's standard version."""

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack
from lipforge.attacks.fab import FAB
from lipforge.attacks.square import Square
from lipforge.errors import InputError

TARGETS = 9


def standard_attacks(classes: int) -> tuple[Attack, Attack, Attack, Attack]:
    """APGD-CE, APGD-T, FAB-T and Square, with the losses and targets that a model with that many classes allows."""
    if classes < 2:
        raise InputError(f"the model must have at least 2 classes, got {classes}")
    targets = min(TARGETS, classes - 1)
    loss = "dlr" if classes >= 4 else "margin"
    return APGD(), TargetedAPGD(targets=targets, loss=loss), FAB(targets=targets), Square()
