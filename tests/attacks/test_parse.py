"""The text form of attacks, both ways."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipforge.attacks import (
    APGD,
    CW,
    FAB,
    FGSM,
    PGD,
    AutoAttack,
    Cascade,
    Square,
    TargetedAPGD,
    parse_attack,
    text_form,
)
from lipforge.errors import InputError

pgds = st.builds(
    PGD,
    steps=st.integers(1, 10_000),
    step=st.floats(1e-6, 10.0),
    restarts=st.integers(1, 50),
    loss=st.sampled_from(["ce", "margin", "dlr"]),
)
fgsms = st.builds(FGSM, step=st.floats(1e-6, 10.0), random=st.booleans(), loss=st.sampled_from(["ce", "margin"]))

others = st.sampled_from(
    [
        CW(steps=7),
        APGD(loss="dlr", restarts=5, rho=0.5),
        TargetedAPGD(targets=3, loss="margin"),
        FAB(targets=0, eta=1.5),
        Square(queries=20_000, rescale=True),
        AutoAttack("plus"),
        AutoAttack(),
    ]
)
singles = pgds | fgsms | others
cascades = st.lists(singles, min_size=2, max_size=4).map(lambda attacks: Cascade(tuple(attacks)))


@given(singles | cascades)
def test_an_attack_survives_the_way_through_text(attack):
    assert parse_attack(text_form(attack)) == attack


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pgd", PGD()),
        ("apgd-t:targets=4 + square", Cascade((TargetedAPGD(targets=4), Square()))),
        ("fgsm:random=true,step=5/4", FGSM(random=True, step=1.25)),
        (" pgd: steps = 50 , loss = margin ", PGD(steps=50, loss="margin")),
    ],
)
def test_text_is_read(text, expected):
    assert parse_attack(text) == expected


def test_only_what_differs_from_the_default_is_spelled():
    assert text_form(PGD(steps=50, random=False)) == "pgd:steps=50,random=false"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gdp", "one of fgsm, pgd, .*, got 'gdp'"),
        ("pgd:stesp=3", "settings of pgd are steps, restarts, step, random, loss"),
        ("pgd:steps", "as key=value; got 'steps'"),
        ("pgd:steps=1.5", "steps in 'pgd:steps=1.5' must be a whole number"),
        ("pgd:random=maybe", "must be true or false"),
        ("pgd:step=big", "must be a number such as"),
        ("pgd:steps=3,steps=4", "given twice"),
        ("pgd:steps=0", "at least 1"),
    ],
)
def test_text_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_attack(text)


def test_an_attack_of_an_unknown_kind_has_no_text_form():
    @dataclass(frozen=True)
    class Other:
        name: ClassVar[str] = "pgd"

    with pytest.raises(InputError, match="have a text form"):
        text_form(cast(Any, Other()))
