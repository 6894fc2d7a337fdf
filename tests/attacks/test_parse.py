"""The text form of attacks, both ways."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipforge.attacks import (
    APGD,
    CW,
    DDN,
    FAB,
    FGSM,
    FMN,
    PGD,
    Attack,
    AutoAttack,
    Boundary,
    Cascade,
    Fast,
    MinimumNorm,
    RayS,
    Restarts,
    Square,
    TargetedAPGD,
    attack_text,
    parse_attack,
    text_form,
)
from lipforge.errors import InputError

pgds = st.builds(
    PGD,
    steps=st.integers(1, 10_000),
    step_size=st.floats(1e-6, 10.0),
    restarts=st.integers(1, 50),
    loss=st.sampled_from(["ce", "margin", "dlr"]),
)
fgsms = st.builds(
    FGSM, step_size=st.floats(1e-6, 10.0), random_start=st.booleans(), loss=st.sampled_from(["ce", "margin"])
)

others = st.sampled_from(
    [
        CW(steps=7),
        APGD(loss="dlr", restarts=5, rho=0.5),
        TargetedAPGD(targets=3, loss="margin"),
        FAB(targets=0, eta=1.5),
        FMN(steps=7, targets=2, gamma=0.1),
        DDN(initial_eps=0.5),
        MinimumNorm(fold=False),
        Square(queries=20_000, rescale=True),
        RayS(queries=2000),
        Boundary(steps=5, restarts=2),
        AutoAttack("plus"),
        AutoAttack(),
        Fast(precision="float16"),
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
        ("fgsm:random_start=true,step_size=5/4", FGSM(random_start=True, step_size=1.25)),
        (" pgd: steps = 50 , loss = margin ", PGD(steps=50, loss="margin")),
    ],
)
def test_text_is_read(text, expected):
    assert parse_attack(text) == expected


@pytest.mark.parametrize(
    ("attack", "text"),
    [
        (AutoAttack(), "autoattack"),
        (AutoAttack("plus"), "autoattack:version=plus"),
        (Fast(), "fast"),
        (Fast(precision="bfloat16"), "fast:precision=bfloat16"),
        (Restarts(), "restarts"),
    ],
)
def test_a_cascade_is_called_by_its_own_name(attack, text):
    assert text_form(attack) == text
    assert parse_attack(text) == attack


def test_only_what_differs_from_the_default_is_spelled():
    assert text_form(PGD(steps=50, random_start=False)) == "pgd:steps=50,random_start=false"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gdp", "one of fgsm, pgd, .*, got 'gdp'"),
        ("autoattak", "got 'autoattak' in 'autoattak'; did you mean 'autoattack'"),
        ("pgd:stesp=3", "settings of pgd are steps, restarts, step_size, random_start, loss.*; did you mean 'steps'"),
        ("pgd:steps", "as key=value; got 'steps'"),
        ("pgd:steps=1.5", "steps in 'pgd:steps=1.5' must be a whole number"),
        ("pgd:random_start=maybe", "must be true or false"),
        ("pgd:step_size=big", "must be a number such as"),
        ("pgd:steps=3,steps=4", "given twice"),
        ("pgd:steps=0", "at least 1"),
        ("pgd:step=5", "got 'step=5'; step is called step_size now"),
        ("cw:step=0.1", "step is called step_size now"),
        ("fgsm:random=true", "random is called random_start now"),
        ("apgd:repeats=20", "repeats is called eot_iter now"),
        ("cw:searches=3", "searches is called binary_search_steps now"),
        ("square:share=0.5", "share is called p_init now"),
        ("fab:alpha=0.2", "alpha is called alpha_max now"),
        ("autoattack:prepare=false", "prepare is called fold now"),
        ("apgd-t:order=near", "order must be rank or nearest, got 'near'"),
        ("rounds", "rounds is called restarts now"),
        ("autoattack:version=fast", r"called fast now; use fast\(\), or --attack fast"),
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


def test_an_attack_of_the_user_is_named_by_its_representation_without_addresses():
    @dataclass(frozen=True)
    class Own(Attack):
        name: ClassVar[str] = "own"
        inner: Any = object

        def attack(self, state):
            """Do nothing."""

    found = attack_text(Own(inner=object()))
    assert "Own(inner=<object object>)" in found
    assert attack_text(PGD(steps=50)) == "pgd:steps=50"
    with pytest.raises(InputError, match="attack must be an attack such as"):
        attack_text(cast(Any, "pgd"))
