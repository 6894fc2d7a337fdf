"""A zoo of broken defences: each hides its gradients or misuses randomness, and each comes with the truth about it.

A defence wraps a base classifier (images in [0, 1] to logits). Its truths are classifiers that judge as the defended
one does and whose gradients get past the defence; `true_robust` attacks through all of them.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import margin_loss
from lipforge.auditing import borrow
from tests.obfuscated import (
    LEVEL,
    Dct,
    Decoy,
    FlatDecoy,
    Function,
    LabelChange,
    LinearDecoy,
    StraightThrough,
    WrongGradient,
    resize_and_pad,
    rounding,
    saturate,
    snap,
    staircase,
    thermometer,
    top_share,
    wiggle,
)

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
