import pytest
import torch
from torch import nn

import lipforge as lf
from lipforge.errors import InputError
from lipforge.evaluation import estimate, sweep, transfer
from lipforge.search import choose_ratio
from lipforge.training import TrainConfig
from lipforge.types import Threat, parse_number


def test_a_threat_keeps_the_spelling_of_its_radius():
    threat = Threat("linf", "8/255")
    assert threat.eps == 8 / 255
    assert str(threat) == "linf 8/255"
    assert Threat("l2", 0.5) == Threat("l2", 0.5)
    assert Threat("Linf", "8/255") == threat  # type: ignore[arg-type]  # as AutoAttack spells it
    assert Threat("l2", 3).eps == 3


@pytest.mark.parametrize(
    ("norm", "eps", "message"),
    [
        ("linfinity", 0.1, "norm must be one of linf, l2, l1, got 'linfinity'"),
        ("linf", 0, "eps must be above 0, got 0"),
        ("linf", "-8/255", "eps must be above 0"),
        ("linf", 8, "eps must be at most 1 for linf, as images lie in .*, got 8; is it 8/255"),
        ("linf", "8/0", "eps must be a number such as"),
        ("linf", "nan", "eps must be a"),
        ("linf", None, "eps must be a number"),
    ],
)
def test_a_wrong_threat_is_named(norm, eps, message):
    with pytest.raises(InputError, match=message):
        Threat(norm, eps)


MODEL = nn.Flatten().eval()
DATA = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
TAKE_A_THREAT = {
    "audit of a model": lambda threat: lf.audit(MODEL, DATA, threat),
    "audit of a pair": lambda threat: lf.audit(MODEL, MODEL, DATA, threat),
    "bracket": lambda threat: lf.bracket(MODEL, DATA, threat),
    "choose_ratio": lambda threat: choose_ratio(MODEL, DATA, threat=threat),
    "estimate": lambda threat: estimate(MODEL, DATA, "fast", threat),
    "evaluate": lambda threat: lf.evaluate(MODEL, DATA, "fast", threat),
    "improve": lambda threat: lf.improve(MODEL, DATA, threat),
    "sweep": lambda threat: sweep({"base": MODEL}, DATA, ["fgsm"], [threat]),
    "training": lambda threat: TrainConfig(threat=threat),
    "transfer": lambda threat: transfer(MODEL, MODEL, DATA, "fast", threat),
}


@pytest.mark.parametrize("threat", [("linf", "2/255"), "linf 2/255", 0.03, None], ids=str)
@pytest.mark.parametrize("name", TAKE_A_THREAT)
def test_what_is_no_threat_is_named_by_all_that_take_one(name, threat):
    with pytest.raises(InputError, match=r"threat must be a Threat such as .*, got") as caught:
        TAKE_A_THREAT[name](threat)
    assert str(caught.value).endswith(repr(threat))


@pytest.mark.parametrize(
    ("text", "value"), [("2^-7", 2**-7), ("2**-7", 2**-7), (" 1/8 ", 0.125), ("1e-3", 1e-3), (3, 3.0)]
)
def test_numbers_are_read_in_every_spelling(text, value):
    assert parse_number(text, name="ratio") == value


@pytest.mark.parametrize("text", ["", "2^", "2^x", "-8^0.5", "inf", "1e999", "a/b", None])
def test_what_is_no_number_is_named(text):
    with pytest.raises(InputError, match="ratio must be a"):
        parse_number(text, name="ratio")
