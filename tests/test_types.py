import pytest

from lipforge.errors import InputError
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


@pytest.mark.parametrize(
    ("text", "value"), [("2^-7", 2**-7), ("2**-7", 2**-7), (" 1/8 ", 0.125), ("1e-3", 1e-3), (3, 3.0)]
)
def test_numbers_are_read_in_every_spelling(text, value):
    assert parse_number(text, name="ratio") == value


@pytest.mark.parametrize("text", ["", "2^", "2^x", "-8^0.5", "inf", "1e999", "a/b", None])
def test_what_is_no_number_is_named(text):
    with pytest.raises(InputError, match="ratio must be a"):
        parse_number(text, name="ratio")
