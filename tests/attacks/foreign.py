"""Attacks of foolbox, torchattacks and ART, from the real packages, for the tests of the adapters."""

from typing import Any

import foolbox
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import as_attack
from lipforge.models.packages import import_package
from tests.attacks.oracles import small_images, small_net

import_package("torchvision")  # torchattacks imports it, and here it lacks its compiled operators

import torchattacks  # noqa: E402  # see above
from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescentPyTorch  # noqa: E402  # beside its peers

THREAT = lf.Threat("linf", "8/255")
EPS = 8 / 255
FGSMS = {
    "foolbox": lf.from_foolbox(foolbox.attacks.LinfFastGradientAttack()),
    "torchattacks": lf.from_torchattacks(torchattacks.FGSM),
    "art": lf.from_art(FastGradientMethod),
    "a function": as_attack(lambda model, x, y: lf.FGSM()(model, x, y, threat=THREAT)),
}
PGDS = {
    "foolbox": lf.from_foolbox(foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=5)),
    "torchattacks": lf.from_torchattacks(torchattacks.PGD, alpha=EPS / 4, steps=5),
    "art": lf.from_art(ProjectedGradientDescentPyTorch, eps_step=EPS / 4, max_iter=5, num_random_init=1),
}


def evaluated(attack: Any, *, count: int = 24, **settings: Any) -> lf.RobustResult:
    net = small_net()
    data = small_images(net, count)
    threat = settings.pop("threat", lf.Threat("linf", 0.01))
    return lf.evaluate(net, data, attack, threat, show_progress=False, **settings)


def far(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 1 - x


class MyPGD(foolbox.attacks.LinfPGD):
    def __init__(self, steps: int, own: Any = None) -> None:
        super().__init__(rel_stepsize=0.25, steps=steps)
        self._own = own


class MyL2(torchattacks.PGDL2):  # type: ignore[misc]  # untyped in torchattacks
    """An attack of the user's, whose docstring says nothing of norms."""
