"""FGSM against the closed form on a linear model and against foolbox."""

import pytest
import torch

from lipforge.attacks import FGSM
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_oracle, small_images, small_net
from tests.attacks.peers import foolbox


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fgsm_is_optimal_on_a_linear_model(norm):
    model, x, y = linear_oracle()
    x_adv = FGSM()(model, x, y, threat=Threat(norm, 0.05))
    logits = model(x_adv)
    margin = 2 * logits.gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin, model.worst_margin(x, y, 0.05, norm))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("norm", "peer"), [("linf", foolbox.attacks.LinfFastGradientAttack), ("l2", foolbox.attacks.L2FastGradientAttack)]
)
def test_fgsm_finds_the_images_that_foolbox_finds(norm, peer):
    model = small_net()
    x, y = small_images(model)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, expected, _ = peer(random_start=False)(wrapped, x, y, epsilons=0.1)
    torch.testing.assert_close(FGSM()(model, x, y, threat=Threat(norm, 0.1)), expected, rtol=0, atol=1e-6)


def test_a_random_start_depends_on_the_seed_and_the_id_only():
    model = small_net()
    x, y = small_images(model)
    attack, threat = FGSM(step=0.1, random=True), Threat("linf", 0.1)
    together = attack(model, x, y, threat=threat, seed=1)
    alone = attack(model, x[5:6], y[5:6], threat=threat, seed=1, sample_ids=torch.tensor([5]))
    torch.testing.assert_close(alone, together[5:6])
    assert not torch.equal(attack(model, x, y, threat=threat, seed=2), together)


def test_a_step_of_zero_is_refused():
    with pytest.raises(InputError, match="step must be above 0"):
        FGSM(step=0)
