"""Attacks on any callable from images in [0, 1] to logits; they know nothing of forging."""

from lipforge.attacks.base import Attack
from lipforge.attacks.fgsm import FGSM
from lipforge.attacks.losses import LOSSES, Loss, cross_entropy, dlr, margin
from lipforge.attacks.parse import parse_attack, text_form
from lipforge.attacks.pgd import PGD

__all__ = ["FGSM", "LOSSES", "PGD", "Attack", "Loss", "cross_entropy", "dlr", "margin", "parse_attack", "text_form"]
