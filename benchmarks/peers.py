"""Architectures of robust CIFAR-10 weights that others have published, for files that the user brings along.

The files are plain state dicts; none of them is part of lipforge. ResNet-20 (pni_resnet20_*.pt) comes from
adam-dziedzic/bandlimited-cnns (Apache-2.0), the "2b" net and CNN-A from Verified-Intelligence/alpha-beta-CROWN (BSD-3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge.models import Normalize, load_model

MEAN = (0.4914, 0.4822, 0.4465)


@dataclass(frozen=True)
class Peer:
    """A file of weights, the architecture it fits, and the eps at which to attack it."""

    file: str
    build: Callable[[], nn.Module]
    eps: str


def load_peer(peer: Peer, folder: Path) -> nn.Module:
    """The peer's model in eval mode, on images in [0, 1]."""
    model = peer.build()
    model.load_state_dict(torch.load(folder / peer.file, weights_only=True))
    if isinstance(model, Net2b):
        model = nn.Sequential(Normalize(MEAN, (0.2470, 0.2435, 0.2616)), model)
    elif isinstance(model, nn.Sequential):
        model = nn.Sequential(Normalize(MEAN, (0.2023, 0.1994, 0.2010)), model)
    return model.eval().requires_grad_(False)


class Block20(nn.Module):
    """A block of the ResNet-20: two convs with batch norm; where its shape changes, the shortcut is padded."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv_a, self.bn_a = nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_b, self.bn_b = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.pad = width - width_in

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn_b(self.conv_b(F.relu(self.bn_a(self.conv_a(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.pad))
        return F.relu(x + out)


class ResNet20(nn.Module):
    """Stem, three stages of three blocks with 16, 32 and 64 channels, average pool, head; no normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1_3x3, self.bn_1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.stage_1 = nn.Sequential(*(Block20(16, 16, 1) for _ in range(3)))
        self.stage_2 = nn.Sequential(Block20(16, 32, 2), Block20(32, 32, 1), Block20(32, 32, 1))
        self.stage_3 = nn.Sequential(Block20(32, 64, 2), Block20(64, 64, 1), Block20(64, 64, 1))
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage_3(self.stage_2(self.stage_1(F.relu(self.bn_1(self.conv_1_3x3(x))))))
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


class Block2b(nn.Module):
    """A basic block without batch norm."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width_in, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        same = stride == 1 and width_in == width
        self.shortcut = nn.Sequential(*([] if same else [nn.Conv2d(width_in, width, 1, stride)]))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


class Net2b(nn.Module):
    """A strided stem, two basic blocks of width 16, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Block2b(8, 16, 2), Block2b(16, 16, 1))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.conv1(x))).flatten(1)
        logits: Tensor = self.linear2(F.relu(self.linear1(x)))
        return logits


def cnn_a() -> nn.Sequential:
    """Two strided convs and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


PEERS = {
    "pni_resnet20_adv_v0": Peer("pni_resnet20_adv_v0.pt", ResNet20, "8/255"),
    "pni_resnet20_adv_v1": Peer("pni_resnet20_adv_v1.pt", ResNet20, "8/255"),
    "pni_resnet20_natural": Peer("pni_resnet20_natural.pt", ResNet20, "2/255"),
    "resnet2b_eps2": Peer("resnet2b_eps2.pt", Net2b, "2/255"),
    "cnn_a_adv4": Peer("cnn_a_adv4.pt", cnn_a, "8/255"),
}


def load_any(name: str, folder: Path | None) -> nn.Module:
    """A peer, for which the folder with its file is needed, or else a model that lipforge knows."""
    if name not in PEERS:
        return load_model(name)
    if folder is None:
        raise SystemExit(f"--weights-dir must name a folder with {PEERS[name].file}")
    return load_peer(PEERS[name], folder)


def eps_of(name: str) -> str:
    """The eps at which to attack a model."""
    return PEERS[name].eps if name in PEERS else "8/255"
