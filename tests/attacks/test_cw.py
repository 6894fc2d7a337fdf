"""CW for linf is PGD on the margin."""

import pytest
import torch

from lipforge.attacks import CW, PGD
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_oracle, small_images, small_net


def test_cw_reaches_the_optimum_on_a_linear_model():
    model, x, y = linear_oracle()
    result = CW().run(model, x, y, threat=Threat("linf", 0.02))
    standing = ~result.fooled
    assert standing.sum() >= 8
    margin = 2 * model(result.images).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin[standing], model.worst_margin(x, y, 0.02, "linf")[standing])


def test_cw_is_pgd_on_the_margin():
    model = small_net()
    x, y = small_images(model)
    threat = Threat("linf", 0.01)
    expected = PGD(steps=5, loss="margin", step=0.5, restarts=2)(model, x, y, threat=threat)
    assert torch.equal(CW(steps=5, step=0.5, restarts=2)(model, x, y, threat=threat), expected)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"restarts": 0}, {"step": 0.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=r"at least 1|above 0"):
        CW(**settings)
