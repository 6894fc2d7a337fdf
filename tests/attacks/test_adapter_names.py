"""How an attack of another tool is written, and what tells it from another when a run is resumed."""

import copy
from functools import partial
from typing import Any

import foolbox
import numpy as np
import pytest
import torch
from art.attacks.evasion import FastGradientMethod
from torch import nn

import lipforge as lf
from lipforge.attacks import as_attack, attack_text
from lipforge.errors import InputError
from lipforge.runs import RunDir
from tests.attacks.foreign import FGSMS, PGDS, MyL2, MyPGD, evaluated, far, torchattacks
from tests.attacks.oracles import small_net


def test_a_subclass_of_another_tools_attack_is_recognised():
    name = "foolbox.MyPGD(rel_stepsize=0.25, abs_stepsize=None, steps=5, random_start=True, _own=None)"
    assert evaluated(MyPGD(steps=5)).attack == name
    assert evaluated(MyPGD(steps=5)).robust == evaluated(PGDS["foolbox"]).robust
    with pytest.raises(InputError, match=r"attack must be an attack such as .*lf.from_torchattacks"):
        evaluated(MyL2(small_net()))


def named(value: Any) -> str:
    return lf.from_torchattacks(torchattacks.PGD, alpha=value).name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float32(0.0001), np.float32(0.03)),
        ([0.1, 0.2], [0.1, 0.3]),
        ((1, [2]), (1, [3])),
        ({"a": [1]}, {"a": [2]}),
        (np.zeros(3), np.ones(3)),
        (np.zeros((1, 2)), np.zeros((2, 1))),
        (torch.zeros(3), torch.ones(3)),
        (torch.zeros(()), torch.ones(())),
        (MyPGD(1, own=1), MyPGD(1, own=2)),
    ],
    ids=["NumPy number", "list", "tuple", "dict", "array", "shape", "tensor", "tensor number", "foolbox object"],
)
def test_settings_that_differ_are_written_differently_and_equal_ones_alike(one, other):
    assert named(one) != named(other)
    assert named(one) == named(copy.deepcopy(one))
    assert lf.from_torchattacks(torchattacks.PGD, alpha=one).is_identified


def test_a_run_is_not_resumed_with_another_numpy_setting(tmp_path):
    run, threat = RunDir.open(tmp_path), lf.Threat("linf", 0.01)
    for alpha in (np.float32(1e-8), np.float32(0.01)):
        attack = lf.from_torchattacks(torchattacks.PGD, alpha=alpha, steps=2, random_start=False)
        assert evaluated(attack, threat=threat, run=run).robust == evaluated(attack, threat=threat).robust
    assert len(run.results()) == 2


@pytest.mark.parametrize(
    "attack",
    [
        lf.from_torchattacks(torchattacks.PGD, alpha=[nn.CrossEntropyLoss()]),
        lf.from_torchattacks(partial(torchattacks.PGD, steps=1)),
        lf.from_art(FastGradientMethod, summary_writer=np.array([None])),
        MyPGD(1, own=far),
        lf.from_foolbox(MyPGD(1, own={"a": object()})),
        as_attack(far),
        lf.Cascade((lf.FGSM(), as_attack(far))),
    ],
    ids=["module", "partial", "array of objects", "foolbox", "from_foolbox", "as_attack", "cascade"],
)
def test_an_attack_that_its_name_does_not_tell_apart_needs_an_identity_in_a_run(attack, tmp_path):
    with pytest.raises(InputError, match=r"object among its settings, cannot be told from another .*identity="):
        evaluated(attack, run=RunDir.open(tmp_path))


def test_an_attack_is_written_with_its_settings():
    settings = "rel_stepsize=0.25, abs_stepsize=None, steps=5, random_start=True"
    assert attack_text(PGDS["foolbox"]) == f"foolbox.LinfProjectedGradientDescentAttack({settings})"
    assert attack_text(FGSMS["torchattacks"]) == "torchattacks.FGSM()"
    assert attack_text(as_attack(far)) == "far"
    assert attack_text(lf.Cascade((lf.PGD(steps=3), FGSMS["art"]))) == "pgd:steps=3 + art.FastGradientMethod()"
    repeated = lf.from_foolbox(foolbox.attacks.LinfPGD(steps=2).repeat(3))
    assert attack_text(repeated).endswith("steps=2, random_start=True), times=3)")


def test_a_run_resumes_it_and_takes_a_function_with_an_identity_only(tmp_path):
    run = RunDir.open(tmp_path)
    found, again = (evaluated(FGSMS["foolbox"], run=run) for _ in range(2))
    assert found == again  # to the second: it was read back
    with pytest.raises(InputError, match="cannot be told from another when a run is resumed"):
        evaluated(far, run=run)
    assert evaluated(far, run=run, identity={"attack": "far-v1"}).attack == "far"
    (result,) = (run.read_result(name) for name in run.results() if "foolbox" in name)
    assert result == found
