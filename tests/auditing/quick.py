"""Plans and a model so small that an audit takes a second."""

from dataclasses import replace

from lipforge.attacks import APGD, PGD
from lipforge.auditing import Plan
from lipforge.forge import forge_
from lipforge.types import Threat
from tests.nets import ResidualNet, images, seeded

SHORT = APGD(steps=5, loss="margin")
QUICK = Plan(non_adaptive=PGD(steps=5), adaptive=SHORT, longer=SHORT, full=PGD(steps=5), refine=3, check_images=0,
             boundary=None, hard_label=None)  # fmt: skip
"""Enough for effects as large as those of the controls."""

PLAN = replace(QUICK, non_adaptive=PGD(steps=3), check_images=6, check_queries=5, shard_size=5)
THREAT = Threat("linf", "2/255")


def small(classes=10):
    """A small forged model with labels it gets right, so that there is something to attack."""
    model = seeded(ResidualNet, classes=classes)
    forge_(model, images(32), ratio=2**-6)  # so small that gradients are not masked
    x = images(12)
    return model, (x, model(x).argmax(dim=1))


def facts(report):
    """Everything but the time."""
    return {key: value for key, value in vars(report).items() if key != "seconds"}
