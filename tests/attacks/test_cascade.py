"""Cascades: stages, survivors, and never weaker than a member."""

from itertools import pairwise

import pytest
import torch

from lipforge.attacks import FGSM, PGD, Cascade, Square
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

THREAT = Threat("linf", 0.012)
MEMBERS = (FGSM(step=0.3), Square(queries=60), PGD(steps=10))


def _run(attack):
    model = small_net()
    x, y = small_images(model, 100)
    y[:4] = (y[:4] + 1) % 4
    return attack.run(model, x, y, threat=THREAT)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda attack: attack.name)
def test_a_cascade_fools_every_image_that_a_member_fools(member):
    alone, together = _run(member).fooled, _run(Cascade(MEMBERS)).fooled
    assert 5 < alone.sum() < 100
    assert (together | ~alone).all()


def test_the_stages_say_what_each_attack_left_and_took():
    result = _run(Cascade(MEMBERS))
    assert [stage.attack for stage in result.stages] == ["clean", "fgsm:step=0.3", "square:queries=60", "pgd:steps=10"]
    left = [stage.robust for stage in result.stages]
    assert left[0] == 96
    assert left == sorted(left, reverse=True)
    assert left[-1] == int((~result.fooled).sum())
    assert sum(stage.forwards for stage in result.stages) == int(result.forwards.sum())
    assert sum(stage.backwards for stage in result.stages) == int(result.backwards.sum())
    broken = [result.outcome.count(stage.attack) for stage in result.stages[1:]]
    assert broken == [before - after for before, after in pairwise(left)]
    assert min(broken) > 0
    assert result.outcome[:4] == ("misclassified",) * 4


def test_an_image_that_is_fooled_is_not_attacked_again():
    result = _run(Cascade(MEMBERS))
    by_fgsm = torch.tensor([outcome == "fgsm:step=0.3" for outcome in result.outcome])
    # clean, FGSM's gradient, the look at its step, and the confirmation
    assert result.forwards[by_fgsm].tolist() == [4] * int(by_fgsm.sum())
    assert result.forwards[:4].tolist() == [1] * 4


def test_a_cascade_of_cascades_is_one_list_of_stages():
    nested = _run(Cascade((Cascade(MEMBERS[:2]), MEMBERS[2])))
    flat = _run(Cascade(MEMBERS))
    assert [(stage.attack, stage.robust) for stage in nested.stages] == [
        (stage.attack, stage.robust) for stage in flat.stages
    ]
    assert nested.outcome == flat.outcome


def test_nothing_is_run_when_nothing_stands():
    model = small_net()
    x, y = small_images(model)
    result = Cascade(MEMBERS).run(model, x, (y + 1) % 4, threat=THREAT)
    assert [stage.attack for stage in result.stages] == ["clean"]
    assert result.forwards.tolist() == [1] * len(x)


def test_a_cascade_of_nothing_is_refused():
    with pytest.raises(InputError, match="at least one attack"):
        Cascade(())


def test_whoever_watches_is_told_each_attack_as_it_begins():
    model, told = small_net(), list[str]()
    x, y = small_images(model, 10)
    Cascade((PGD(steps=2), FGSM(step=0.3))).run(model, x, y, threat=Threat("linf", 1e-4), watch=told.append)
    assert told == ["cascade", "pgd:steps=2", "fgsm:step=0.3"]
