"""Attacks on any callable from images in [0, 1] to logits; they know nothing of forging."""

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack, AttackWarning, Cascade, spelled
from lipforge.attacks.cascades import AutoAttack, Escalate, Fast, Restarts, autoattack, fast
from lipforge.attacks.cw import CW
from lipforge.attacks.fab import FAB
from lipforge.attacks.folding import CHECKED, Precision, prepare
from lipforge.attacks.losses import (
    LOSSES,
    TARGETED_LOSSES,
    Loss,
    TargetedLoss,
    cross_entropy,
    dlr,
    margin,
    margin_loss,
    targeted_dlr,
    targeted_margin_loss,
)
from lipforge.attacks.parse import attack_text, parse_attack, text_form
from lipforge.attacks.pgd import FGSM, PGD, Refine, Refined, refine
from lipforge.attacks.queries import Prepared, check_labels, is_misclassified, logits_of
from lipforge.attacks.square import Square
from lipforge.attacks.state import AttackResult, AttackState

__all__ = [
    "APGD",
    "CHECKED",
    "CW",
    "FAB",
    "FGSM",
    "LOSSES",
    "PGD",
    "TARGETED_LOSSES",
    "Attack",
    "AttackResult",
    "AttackState",
    "AttackWarning",
    "AutoAttack",
    "Cascade",
    "Escalate",
    "Fast",
    "Loss",
    "Precision",
    "Prepared",
    "Refine",
    "Refined",
    "Restarts",
    "Square",
    "TargetedAPGD",
    "TargetedLoss",
    "attack_text",
    "autoattack",
    "check_labels",
    "cross_entropy",
    "dlr",
    "fast",
    "is_misclassified",
    "logits_of",
    "margin",
    "margin_loss",
    "parse_attack",
    "prepare",
    "refine",
    "spelled",
    "targeted_dlr",
    "targeted_margin_loss",
    "text_form",
]
