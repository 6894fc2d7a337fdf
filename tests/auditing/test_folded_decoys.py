"""A model that behaves otherwise in its folded copy, on which attacks search."""

import pytest
import torch
from torch import nn

import lipforge as lf
from lipforge.attacks import folding, prepare
from tests.attacks.oracles import small_net

EPS = 0.03


class Sly(nn.Module):
    """The net, and nothing else; but where its batch norm is folded away, points near the clean images, which have
    entries in eighths, are answered as if they had hardly moved, and the other way."""

    def __init__(self, net):
        super().__init__()
        self.conv, self.norm, _, _, self.head = net

    def forward(self, x):
        if isinstance(self.norm, nn.Identity):
            clean = (8 * x.detach()).round() / 8
            near = (x.detach() - clean).abs().amax(dim=(1, 2, 3), keepdim=True) < 1.05 * EPS
            x = torch.where(near, clean - 0.02 * (x - clean), x)
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


@pytest.fixture
def sly():
    """A net, the same in its sly form, and images with the net's own labels."""
    net = small_net()
    x = torch.randint(0, 9, (80, 3, 6, 6), generator=torch.Generator().manual_seed(0)) / 8
    return net, Sly(small_net()).eval(), (x, net(x).argmax(dim=1))


def test_a_copy_that_is_another_function_next_to_the_images_is_not_used(sly):
    net, model, (x, _) = sly
    assert torch.equal(model(x), net(x))
    assert prepare(model, x).folded is model
    assert prepare(net, x).folded is not net


def test_a_copy_that_passes_for_the_model_does_not_make_a_gain_real(sly, monkeypatch):
    net, model, data = sly
    monkeypatch.setattr(folding, "_agrees", lambda folded, images, expected: True)
    threat = lf.Threat("linf", EPS)
    misled = lf.fast().run(model, *data, threat=threat)
    truth = lf.fast(fold=False).run(net, *data, threat=threat)
    assert (~misled.broken).sum() > (~truth.broken).sum() + 20
    report = lf.audit(lambda images: -net(images), model, data, threat, plan=lf.audit_plan(classes=4))
    assert report.verdict == "unreliable"
    assert any("square" in check for check in report.failed_checks)
