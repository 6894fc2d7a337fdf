"""A small real network, fitted once per session to real images."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipforge.data import load_data


@pytest.fixture(scope="session")
def fitted():
    """A network that has learnt the 500 sample images of CIFAR-10, and 80 of them it classifies correctly."""
    images, labels = load_data("cifar10-sample:train").batch(range(500))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 10),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        for step in range(150):
            rows = torch.arange(100) + 100 * (step % 5)
            noisy = (images[rows] + 0.03 * torch.randn(100, 3, 32, 32)).clamp(0, 1)
            optimizer.zero_grad()
            F.cross_entropy(net(noisy), labels[rows]).backward()
            optimizer.step()
    net.eval().requires_grad_(False)
    right = (net(images).argmax(dim=1) == labels).nonzero().squeeze(1)[:80]
    assert len(right) == 80
    return net, images[right].clone(), labels[right].clone()
