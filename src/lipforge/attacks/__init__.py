"""Attacks on any callable from images in [0, 1] to logits; they know nothing of forging."""

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.autoattack import AutoAttack, autoattack
from lipforge.attacks.base import Attack, AttackWarning, spelled
from lipforge.attacks.cascade import Cascade
from lipforge.attacks.checks import by_square, notes_and_square, square_notes
from lipforge.attacks.cw import CW
from lipforge.attacks.fab import FAB
from lipforge.attacks.fast import Escalate, Rounds
from lipforge.attacks.fgsm import FGSM
from lipforge.attacks.losses import (
    LOSSES,
    TARGETED_LOSSES,
    Loss,
    TargetedLoss,
    cross_entropy,
    dlr,
    margin,
    targeted_dlr,
    targeted_margin,
)
from lipforge.attacks.parse import parse_attack, text_form
from lipforge.attacks.pgd import PGD
from lipforge.attacks.prepare import Precision, prepare
from lipforge.attacks.queries import Prepared
from lipforge.attacks.result import AttackResult, Stage
from lipforge.attacks.square import Square
from lipforge.attacks.trial import Trial

__all__ = [
    "APGD",
    "CW",
    "FAB",
    "FGSM",
    "LOSSES",
    "PGD",
    "TARGETED_LOSSES",
    "Attack",
    "AttackResult",
    "AttackWarning",
    "AutoAttack",
    "Cascade",
    "Escalate",
    "Loss",
    "Precision",
    "Prepared",
    "Rounds",
    "Square",
    "Stage",
    "TargetedAPGD",
    "TargetedLoss",
    "Trial",
    "autoattack",
    "by_square",
    "cross_entropy",
    "dlr",
    "margin",
    "notes_and_square",
    "parse_attack",
    "prepare",
    "spelled",
    "square_notes",
    "targeted_dlr",
    "targeted_margin",
    "text_form",
]
