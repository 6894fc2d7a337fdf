"""A zoo of broken defences: each hides its gradients or misuses randomness, and each comes with the truth about it.

A defence wraps a base classifier (images in [0, 1] to logits). Its truths are classifiers that judge as the defended
one does and whose gradients get past the defence; `true_robust` attacks through all of them.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import margin_loss
from lipforge.auditing import borrow

LEVEL = 1 / 255
DRAWS = 16
"""How many draws a random defence's logits are averaged over, for its truth."""

Truths = Callable[[nn.Module, nn.Module], Mapping[str, lf.Classifier]]


@dataclass(frozen=True)
class Defence:
    """`build` makes the defended classifier of a base; `truths` takes base and judge, the classifier that decides. The
    defence may cost up to `tolerance` of clean accuracy. The judge of a random one has the mean logits of 16 draws."""

    name: str
    build: Callable[[nn.Module], nn.Module]
    truths: Truths
    tolerance: float = 0.1
    random: bool = False

    def judge(self, defended: nn.Module) -> nn.Module:
        """The classifier whose logits decide who is broken: the defended one, or the mean of its draws."""
        return Mean(defended, DRAWS) if self.random else defended


def true_robust(
    defence: Defence,
    base: nn.Module,
    defended: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: lf.Threat,
    seed: int = 0,
    *,
    own: Tensor | None = None,
) -> Tensor:
    """Which images (N,) are robust to everything: transfer from the base, attacks through each truth, and `fast` on the
    defended classifier, unless `own` (N,) says which are robust to that. What `fast` breaks of a random defence it may
    break by one lucky draw, so it does not count there."""
    robust = robust_to_truths(defence, base, defended, x, y, threat, seed)
    if defence.random:
        return robust
    if own is None:
        own = ~lf.fast().run(defended, x, y, threat=threat, seed=seed).broken
    return robust & own


def robust_to_truths(
    defence: Defence, base: nn.Module, defended: nn.Module, x: Tensor, y: Tensor, threat: lf.Threat, seed: int = 0
) -> Tensor:
    """Which images (N,) are robust to transfer from the base and to APGD through each truth, without `fast`."""
    judge = defence.judge(defended)
    robust = ~transferred(base, judge, x, y, threat)
    attack = lf.Cascade(
        (
            lf.APGD(steps=40, restarts=2, loss="margin"),
            lf.TargetedAPGD(steps=40, targets=2, loss="margin", order="nearest"),
        )
    )
    for number, truth in enumerate(defence.truths(base, judge).values()):
        at = robust.nonzero().squeeze(1)
        if len(at):
            found = attack.run(truth, x[at], y[at], threat=threat, seed=seed + number, sample_ids=at)
            robust[at] = ~found.broken
    return robust


def transferred(base: nn.Module, judge: nn.Module, x: Tensor, y: Tensor, threat: lf.Threat, steps: int = 30) -> Tensor:
    """Which images (N,) the judge gets wrong at some step of PGD (linf) on the base's own margin. Unlike our attacks it
    goes on when the base is fooled: a point just across the boundary may not fool the judge."""
    assert threat.norm == "linf"
    low, high = (x - threat.eps).clamp_min(0), (x + threat.eps).clamp_max(1)
    point, broken = x, ~correct(judge, x, y)
    for step in range(steps):
        point = point.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(margin_loss(base(point), y).sum(), point)
        size = threat.eps * (0.5 if step < steps // 2 else 0.1)
        point = (point.detach() + size * gradient.sign()).clamp(low, high)
        broken |= ~correct(judge, point, y)
        if broken.all():
            break
    return broken


@torch.no_grad()
def correct(classifier: lf.Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Which images (N,) are in the class `y`."""
    return classifier(x).argmax(dim=1) == y


class Mean(nn.Module):
    """The mean logits of a random classifier over the same `draws` draws in every call."""

    def __init__(self, model: nn.Module, draws: int) -> None:
        super().__init__()
        self.model, self.draws = model, draws
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return torch.stack([self.model(x) for _ in range(self.draws)]).mean(dim=0)


class _Backward(torch.autograd.Function):
    """The value of `y`, and for `x` the gradient that `change` makes of that of `y`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.change(gradients[0]), None, None


class StraightThrough(nn.Module):
    """The change with an identity backward pass (BPDA)."""

    def __init__(self, change: nn.Module) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return _Backward.apply(x, self.change(x.detach()), lambda gradient: gradient)


class WrongGradient(nn.Module):
    """The identity; a fixed random `share` of the input gradient's entries comes back negated."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        draw = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
        sign = 1 - 2 * (draw < self.share).to(x)
        return _Backward.apply(x, x, lambda gradient: gradient * sign)


class Function(nn.Module):
    """A plain function of a tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Dct(nn.Module):
    """Rounds the DCT coefficients of 8x8 blocks to multiples of `step`; `leak` is the share of the identity in the
    gradient, which is 0 otherwise."""

    def __init__(self, step: float, leak: float) -> None:
        super().__init__()
        self.step, self.leak = step, leak
        row = torch.arange(8.0)
        basis = torch.cos(math.pi / 8 * (row + 0.5) * row[:, None]) / 2
        basis[0] /= math.sqrt(2)
        self.register_buffer("basis", basis)

    def forward(self, x: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        blocks = x.reshape(count, channels, height // 8, 8, width // 8, 8)
        coefficients = torch.einsum("ui,nchiwj,vj->nchuwv", self.basis, blocks, self.basis)
        rounded = (coefficients / self.step).round() * self.step
        image = torch.einsum("ui,nchuwv,vj->nchiwj", self.basis, rounded, self.basis).reshape(x.shape)
        return image + self.leak * (x - x.detach())


class Decoy(nn.Module):
    """Adds a huge term that varies fast with the image to the largest logit, which stays the largest."""

    def __init__(self, base: nn.Module, size: float = 1000.0, frequency: float = 300.0) -> None:
        super().__init__()
        self.base, self.size, self.frequency = base, size, frequency

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        pattern = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
        term = self.size * (1 + torch.sin(self.frequency * (x * pattern).flatten(1).mean(dim=1)))
        return logits + term[:, None] * F.one_hot(logits.argmax(dim=1), logits.shape[1])


class LinearDecoy(nn.Module):
    """Keeps the class of the base; all other logits are linear in the image and know nothing of the base, so that
    their gradients are true and lead nowhere."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.base(x)
        signs = torch.randint(0, 2, (logits.shape[1], x[0].numel()), generator=torch.Generator().manual_seed(0))
        line = (x.flatten(1) - 0.5) @ (2.0 * signs.to(x) - 1).T / x[0].numel()
        others = 100 * (line - 25 * LEVEL)
        return torch.where(F.one_hot(logits.argmax(dim=1), logits.shape[1]).bool(), torch.zeros_like(others), others)


class FlatDecoy(LinearDecoy):
    """A linear decoy that gives way to the base's own logits where two of them are close: gradients are honest at the
    boundary, and lead nowhere from the images."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        best, second = logits.topk(2, dim=1).values.unbind(dim=1)
        return torch.where((best - second < 0.5)[:, None], logits, super().forward(x))


class LabelChange(nn.Module):
    """Swaps the two largest logits of an image with more high-frequency energy than nearly all clean ones have."""

    def __init__(self, base: nn.Module, clean: Tensor) -> None:
        super().__init__()
        self.base, self.limit = base, float(energy(clean).quantile(0.95))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        top = logits.topk(2, dim=1)
        swapped = logits.scatter(1, top.indices, top.values.flip(1))
        return torch.where((energy(x) > self.limit)[:, None], swapped, logits)


def energy(x: Tensor) -> Tensor:
    """The mean absolute second difference (N,) along both axes at once: large for pixels that alternate."""
    corners = x[..., 1:, 1:] - x[..., :-1, 1:] - x[..., 1:, :-1] + x[..., :-1, :-1]
    return corners.abs().flatten(1).mean(dim=1)


def rounding(levels: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.round(x * (levels - 1)) / (levels - 1)


def staircase(levels: int, steepness: float) -> Callable[[Tensor], Tensor]:
    """Smooth steps between the levels: steep half way between two of them, nearly flat elsewhere."""

    def change(x: Tensor) -> Tensor:
        scaled = x * (levels - 1)
        level = scaled.detach().floor()
        return (level + torch.sigmoid(steepness * (scaled - level - 0.5))) / (levels - 1)

    return change


def wiggle(amplitude: float, frequency: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + amplitude * torch.sin(frequency * x)


def thermometer(levels: int) -> Callable[[Tensor], Tensor]:
    """The share of levels that a pixel exceeds; 0 times the image keeps a gradient of 0 where there would be none."""

    def change(x: Tensor) -> Tensor:
        thresholds = (torch.arange(levels, device=x.device, dtype=x.dtype) + 0.5) / levels
        return (x[..., None] > thresholds).to(x).mean(dim=-1) + 0 * x

    return change


def snap(x: Tensor) -> Tensor:
    """Continuous, and flat within 0.3/255 of the 8-bit grid, where the clean images are."""
    grid = (x.detach() / LEVEL).round()
    offset = x / LEVEL - grid
    return LEVEL * (grid + offset.sign() * (offset.abs() - 0.3).clamp_min(0) * 0.5 / 0.2)


def top_share(share: float) -> Callable[[Tensor], Tensor]:
    """k-WTA: zero for all but the largest `share` of an image's activations."""

    def change(h: Tensor) -> Tensor:
        least = h.flatten(1).topk(max(1, round(share * h[0].numel())), dim=1).values[:, -1]
        return h * (h >= least.reshape(-1, *[1] * (h.ndim - 1)))

    return change


def resize_and_pad(x: Tensor) -> Tensor:
    """The images at a random smaller size, at a random place in a frame of zeros."""
    side = x.shape[-1]
    size = int(torch.randint(side - 4, side, ()))
    left, top = (int(torch.randint(0, side - size + 1, ())) for _ in range(2))
    smaller = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    return F.pad(smaller, (left, side - size - left, top, side - size - top))


def saturate(z: Tensor) -> Tensor:
    """1000 for the largest logit and -1000 for the others, with gradients of 0, unless the two largest are close."""
    middle = z.topk(2, dim=1).values.mean(dim=1, keepdim=True)
    return 1000 * torch.tanh((z - middle) / 0.02)


def before_convs(base: nn.Module, change: nn.Module) -> nn.Module:
    """A copy of the base with the change in front of every 3x3 conv but the first."""
    model = copy.deepcopy(base)
    convs = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    for name, layer in [(name, layer) for name, layer in convs if layer.kernel_size == (3, 3)][1:]:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Sequential(change, layer))
    return model.eval()


def base_only(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
    return {"base gradients": borrow(judge, base)}


def on_images(name: str, change: nn.Module | Callable[[Tensor], Tensor], tolerance: float = 0.1) -> Defence:
    """A change of the images in front of the base."""
    front = change if isinstance(change, nn.Module) else Function(change)

    def truths(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
        bpda = nn.Sequential(StraightThrough(front), base).eval()
        return {"BPDA": bpda, **base_only(base, judge)}

    return Defence(name, lambda base: nn.Sequential(front, base).eval(), truths, tolerance)


def on_layers(name: str, change: Callable[[Tensor], Tensor], tolerance: float = 0.1) -> Defence:
    """A change of what the hidden convs are given."""

    def truths(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
        return {"BPDA": before_convs(base, StraightThrough(Function(change))), **base_only(base, judge)}

    return Defence(name, lambda base: before_convs(base, Function(change)), truths, tolerance)


def on_logits(name: str, change: Callable[[Tensor], Tensor]) -> Defence:
    """A change of the logits that keeps the largest."""
    return Defence(name, lambda base: nn.Sequential(base, Function(change)).eval(), base_only, 0.0)


def at_random(name: str, change: Callable[[Tensor], Tensor], tolerance: float = 0.1) -> Defence:
    """A random change of the images; gradients through four draws stand for the mean over all."""

    def truths(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
        few = Mean(nn.Sequential(Function(change), base).eval(), 4)
        return {**base_only(base, judge), "EOT": borrow(judge, few)}

    return Defence(name, lambda base: nn.Sequential(Function(change), base).eval(), truths, tolerance, random=True)


def masked(name: str, mask: lf.Step | lf.Piecewise, ratio: float, tolerance: float) -> Defence:
    """lipforge's own masks, with a ratio far above any that keeps the accuracy."""

    def build(base: nn.Module) -> nn.Module:
        model = copy.deepcopy(base)
        lf.forge_(model, lf.load_data("cifar10-sample:train", limit=200), mask=mask, ratio=ratio)
        return model

    def truths(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
        return {"BPDA": lf.straight_through(judge), **base_only(base, judge)}

    return Defence(name, build, truths, tolerance)


def label_change(base: nn.Module) -> nn.Module:
    clean, _ = lf.load_data("cifar10-sample:train").batch(range(300))
    return LabelChange(base, clean).eval()


def label_truths(base: nn.Module, judge: nn.Module) -> dict[str, lf.Classifier]:
    """With the gradient negated, an attack makes the image noisier and surer, and so its label changes."""
    return {**base_only(base, judge), "negated base": borrow(judge, nn.Sequential(base, Function(torch.neg)).eval())}


WIGGLES = [(amplitude, frequency) for amplitude in (0.25, 0.5, 1.0) for frequency in (2000, 6000, 20000)]

DEFENCES = (
    on_images("rounding to 8 levels", rounding(8)),
    on_images("DCT rounding", Dct(0.15, leak=0.0), 0.15),
    on_images("leaking DCT rounding", Dct(0.15, leak=1e-3), 0.15),
    on_images("soft staircase", staircase(16, 30.0)),
    *(on_images(f"wiggle {size:g}/255 at {rate}", wiggle(size * LEVEL, rate)) for size, rate in WIGGLES),
    on_layers("hidden wiggle", wiggle(0.05, 1000)),
    Defence("decoy", lambda base: Decoy(base).eval(), base_only, 0.0),
    Defence("linear decoy", lambda base: LinearDecoy(base).eval(), base_only, 0.0),
    Defence("flat decoy", lambda base: FlatDecoy(base).eval(), base_only, 0.0),
    on_layers("k-WTA 20 %", top_share(0.2), 0.15),
    on_images("negated gradient", WrongGradient(1.0)),
    on_images("half wrong gradient", WrongGradient(0.5)),
    on_logits("saturated logits", saturate),
    on_logits("logits x 1e-6", lambda z: 1e-6 * z),
    on_logits("logits x 1e6", lambda z: 1e6 * z),
    on_logits("softmax", lambda z: z.softmax(dim=1)),
    on_logits("softmax of logits x 100", lambda z: (100 * z).softmax(dim=1)),
    at_random("random resize and pad", resize_and_pad),
    at_random("Gaussian noise 8/255", lambda x: x + 8 * LEVEL * torch.randn_like(x)),
    on_images("thermometer code", thermometer(16)),
    Defence("label change", label_change, label_truths),
    masked("Step 2^-4", lf.Step(), 2**-4, 0.1),
    masked("Step 2^-3", lf.Step(), 2**-3, 0.5),
    masked("Piecewise 2^-4", lf.Piecewise(), 2**-4, 0.1),
    on_images("flat at 8-bit images", snap),
)
