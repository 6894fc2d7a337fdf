"""Attacks on any callable from images in [0, 1] to logits; they know nothing of forging."""

from lipforge.attacks.adapters import (
    AnyAttack,
    Foreign,
    as_attack,
    from_art,
    from_foolbox,
    from_torchattacks,
    is_function,
)
from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack, AttackWarning, Cascade, spelled
from lipforge.attacks.boundary import Boundary
from lipforge.attacks.cascades import AutoAttack, Escalate, Fast, MinimumNorm, Nearest, Restarts, autoattack, fast
from lipforge.attacks.cw import CW
from lipforge.attacks.fab import FAB
from lipforge.attacks.folding import CHECKED, Precision, prepare
from lipforge.attacks.losses import cross_entropy, margin, margin_loss
from lipforge.attacks.minimum import DDN, FMN
from lipforge.attacks.parse import attack_text, parse_attack, text_form
from lipforge.attacks.pgd import FGSM, PGD, Refine, Refined, refine
from lipforge.attacks.queries import Prepared, check_labels, is_misclassified, logits_of
from lipforge.attacks.rays import RayS
from lipforge.attacks.square import Square
from lipforge.attacks.state import AttackResult, AttackState
