"""The last linear layer refitted on adversarial features: a convex fit that changes no other weight.

Attack and fit take turns: adversarial images against the current head, then the head on the features of all of them so
far. A head is kept only if more images that no fit has seen, attacked anew, are robust with it.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks import CHECKED, PGD, check_labels, cross_entropy, logits_of, norms
from lipforge.attacks.folding import Laid, folded_copy
from lipforge.batching import BATCH_SIZE, ImageData, LabelledSource, as_data, check_eval, check_images, device_of
from lipforge.errors import InputError, ModelError
from lipforge.forge.graph import LAYERS
from lipforge.forge.sites import unwrap
from lipforge.progress import progress
from lipforge.recording import eager
from lipforge.results import MISCLASSIFIED
from lipforge.types import Classifier, Threat

STEPS = 3
"""On two small nets at 2/255, 10 steps give a head with the same loss under attack to the third decimal."""

REACH = 2.5
"""How far the steps of a fit's attack go together, as a multiple of eps (Madry et al. 2018)."""

JUDGE = PGD(steps=5, step_size=REACH / 5, loss="margin")
"""The attack on held-out images: the margin, unlike cross-entropy, does not mind the scale of the logits, which a fit
changes."""

LEAST_FITTED, LEAST_HELD_OUT = 50, 20
"""With fewer images chance decides what is kept."""

ITERATIONS = 500


class Head(NamedTuple):
    """A weight (K, F) and a bias (K,), if there is one."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)

    @property
    def parts(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Head":
        return Head(function(self.weight), None if self.bias is None else function(self.bias))


class Features(NamedTuple):
    """Inputs (N, F) of a linear layer and the labels (N,) of their images: float64, on the CPU."""

    inputs: Tensor
    labels: Tensor


class Numbered(NamedTuple):
    """Some images (N, C, H, W), their labels (N,) and their positions (N,) in the data."""

    x: Tensor
    y: Tensor
    ids: Tensor


@dataclass(frozen=True)
class HeldOut:
    """Of `count` held-out images the share classified correctly, and the share still so under attack."""

    count: int
    clean: float
    robust: float


@dataclass(frozen=True, eq=False)
class HeadFit:
    """A weight (K, F) and a bias (K,) for the linear layer `layer`: the model's own where no round helped.

    `kept_rounds` says after how many rounds they were found; 0 says that they are the model's own. `before` and `after`
    are the model's own head and this one on the held-out images, each attacked by itself. `images` were fitted on.
    """

    layer: str
    weight: Tensor
    bias: Tensor | None
    kept_rounds: int
    before: HeldOut
    after: HeldOut
    images: int
    seconds: float


def fit_head(
    model: nn.Module,
    data: LabelledSource,
    threat: Threat,
    *,
    held_out: float = 0.2,
    rounds: int = 2,
    steps: int = STEPS,
    pull: float = 0.01,
    clean: float = 0.0,
    penalty: float = 0.0,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    show_progress: bool | None = None,
) -> HeadFit:
    """The last linear layer of `model` refitted on adversarial images of `data`; the model itself does not change.

    Each of the `rounds` attacks the current head with `steps` steps of PGD and minimises, over all features so far,
    (1 - `clean`) CE(adversarial) + `clean` CE(clean) + `pull` ||(W, b) - (W0, b0)||^2 + `penalty` times the mean of
    ||w_i - w_j||^2 over pairs of classes. Each head is attacked by itself on the share `held_out` of the
    images, and the one with the most robust images comes back: the model's own, unless another has more. The same seed
    gives the same tensors. A class without images is unlearned, and no held-out image tells.
    """
    started, data, model = time.monotonic(), as_data(data), unwrap(model)
    check_eval(model)
    check_range(1, math.inf, rounds=rounds, steps=steps, batch_size=batch_size)
    objective = Objective(pull, clean, penalty)
    sample = first_images(data, device_of(model))
    name = last_linear(model, sample)
    own = _head_of(model, name)
    fitted, judged = split_held_out(len(data), held_out, max(LEAST_FITTED, len(own.weight)), seed=seed)
    work = (rounds + 1) * len(judged) + (rounds + (clean > 0)) * len(fitted)
    with _features_of(model, name, sample) as features, progress("refitting", work, show=show_progress) as step:
        read = partial(read_batches, data, len(own.weight), batch_size=batch_size, device=sample.device, step=step)
        attack = partial(ascend, threat=threat, steps=steps, seed=seed)
        kept, kept_rounds = own, 0
        before = after = judge(_through(features, own), read(judged), threat=threat, seed=seed)
        heads = _heads(objective, own, features, lambda: read(fitted), attack)
        for number, head in zip(range(1, rounds + 1), heads, strict=False):
            found = judge(_through(features, head), read(judged), threat=threat, seed=seed)
            if found.robust > after.robust:
                kept, kept_rounds, after = head, number, found
    return HeadFit(name, *kept, kept_rounds, before, after, len(fitted), time.monotonic() - started)


def last_linear(model: nn.Module, images: Tensor) -> str:
    """The name of the linear layer whose output is the model's logits, seen in one forward pass of `images`.

    Show it several images (N, C, H, W): what follows the layer, a ReLU for example, may leave a single one as it was.
    """
    check_eval(model)
    calls: Counter[str] = Counter()
    last: list[Any] = []

    def watch(name: str, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[name] += 1
        # Clones: an in-place operator behind the layer would otherwise rewrite what was seen.
        linear = isinstance(layer, nn.Linear)
        last[:] = [name, layer, *((args[0].clone(), output.clone()) if linear else (None, None))]

    with torch.no_grad(), eager(), ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, LAYERS):
                hooks.enter_context(module.register_forward_hook(partial(watch, name)))
        logits = logits_of(model, images, whole=True)
    problem = _why_no_head(*last, logits=logits, calls=calls[last[0]]) if last else "no conv or linear layer was called"
    if problem:
        raise ModelError(
            f"the model has no last linear layer to refit: {problem}. Its logits must be the output of one nn.Linear; "
            "leave the head out, or end the model with such a layer"
        )
    return str(last[0])


def _why_no_head(name: str, layer: nn.Module, inputs: Tensor, output: Tensor, *, logits: Tensor, calls: int) -> str:
    """What keeps the layer that was called last from being a head, or the empty text."""
    if not isinstance(layer, nn.Linear):
        return f"the last layer, '{name}', is a {type(layer).__name__}"
    if not torch.equal(output, logits):
        return f"something changes the output of the last layer, '{name}', before it becomes the logits"
    if layer._parameters.get("weight") is None or "bias" not in layer._parameters:
        return f"the last layer, '{name}', computes its weight from others (weight_norm, parametrizations)"
    if calls > 1:
        return f"the last layer, '{name}', is called {calls} times"
    if hasattr(layer, "unforged_class") or not torch.equal(F.linear(inputs, layer.weight, layer.bias), output):
        return f"the last layer, '{name}', does more than multiply by its weight and add its bias (is it forged?)"
    return ""


def _head_of(model: nn.Module, name: str) -> Head:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return Head(layer.weight, layer.bias).map(lambda part: part.detach().clone())


@contextmanager
def _features_of(model: nn.Module, name: str, sample: Tensor) -> Iterator[Classifier]:
    """A function from images to the input (N, F) of that layer; it runs a folded copy where there is one."""
    classifier, _ = folded_copy(model, sample, "float32")
    module = classifier.module if isinstance(classifier, Laid) else model
    seen: list[Tensor] = []

    def features(x: Tensor) -> Tensor:
        classifier(x)
        return seen.pop()

    hook = module.get_submodule(name).register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    with hook, eager():
        yield features


def _through(features: Classifier, head: Head) -> Classifier:
    return lambda x: head(features(x))


def _heads(
    objective: "Objective",
    own: Head,
    features: Classifier,
    read: Callable[[], Iterator[Numbered]],
    attack: Callable[..., Tensor],
) -> Iterator[Head]:
    """The head after each round, for ever."""
    clean = _collect(features, read()) if objective.clean else None
    head, parts = own, []
    for number in itertools.count():
        current = _through(features, head)
        parts.append(_collect(features, (batch._replace(x=attack(current, batch, counter=number)) for batch in read())))
        adversarial = Features(*(torch.cat(part) for part in zip(*parts, strict=True)))
        head = fit_linear(objective, own, adversarial, clean, start=head)
        yield head


def _collect(features: Classifier, batches: Iterable[Numbered]) -> Features:
    found = []
    for batch in batches:
        with torch.no_grad():
            found.append((features(batch.x).cpu().double(), batch.y.cpu()))  # MPS has no float64
    return Features(*(torch.cat(part) for part in zip(*found, strict=True)))


@dataclass(frozen=True)
class Objective:
    """What a fit minimises: see `fit_head`."""

    pull: float
    clean: float
    penalty: float

    def __post_init__(self) -> None:
        check_range(0, math.inf, pull=self.pull, penalty=self.penalty)
        check_range(0, 1, clean=self.clean)

    def __call__(self, head: Head, own: Head, adversarial: Features, clean: Features | None) -> Tensor:
        loss = F.cross_entropy(head(adversarial.inputs), adversarial.labels)
        if clean is not None:
            loss = (1 - self.clean) * loss + self.clean * F.cross_entropy(head(clean.inputs), clean.labels)
        change = torch.stack([(part - start).square().sum() for part, start in zip(head.parts, own.parts, strict=True)])
        # The mean over pairs of rows, without the pairs: their squared distances add up to K times those to the mean.
        spread = (head.weight - head.weight.mean(dim=0)).square().sum() * 2 / (len(head.weight) - 1)
        return loss + self.pull * change.sum() + self.penalty * spread


def fit_linear(
    objective: Objective, own: Head, adversarial: Features, clean: Features | None = None, *, start: Head | None = None
) -> Head:
    """The head that minimises the objective, by L-BFGS in float64 from `start` or `own`, in the dtype of `own`."""
    origin = own.map(lambda part: part.cpu().double())
    # Clones: the optimizer writes into them, and a head in float64 on the CPU would be written into itself.
    head = (start or own).map(lambda part: part.cpu().double().clone().requires_grad_())
    optimizer = torch.optim.LBFGS(
        head.parts, max_iter=ITERATIONS, tolerance_grad=1e-8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        loss = objective(head, origin, adversarial, clean)
        for part, slope in zip(head.parts, torch.autograd.grad(loss, head.parts), strict=True):
            part.grad = slope
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return head.map(lambda part: part.detach().to(own.weight))


def first_images(data: ImageData, device: torch.device) -> Tensor:
    """A few images, checked, that show what a model does."""
    images, _ = data.batch(range(min(CHECKED, len(data))))
    check_images(images)
    return images.to(device)


def split_held_out(count: int, share: float, least: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to fit on, at least `least`, and those of the held-out share, drawn at random."""
    if not 0 < share < 1:
        raise InputError(f"held_out must lie between 0 and 1, got {share}")
    needed = max(math.ceil(LEAST_HELD_OUT / share), math.ceil(least / (1 - share)) + 1)
    if count < needed:
        raise InputError(
            f"data must hold at least {needed} images ({least} to fit on and {LEAST_HELD_OUT} held out, "
            f"with held_out={share:g}), got {count}"
        )
    order = rng.permutation(seed, count, stream="held-out")
    held_out = math.ceil(share * count - 1e-9)
    return order[held_out:].sort().values, order[:held_out].sort().values


def read_batches(
    data: ImageData,
    classes: int,
    ids: Tensor,
    *,
    batch_size: int,
    device: torch.device,
    step: Callable[[int], None] = lambda count: None,
) -> Iterator[Numbered]:
    """The images at these positions, checked, on the device; `step` is told after each batch."""
    for chunk in torch.split(ids, batch_size):
        x, y = data.batch(chunk.tolist())
        check_images(x, first=int(chunk[0]))
        check_labels(y, classes)
        yield Numbered(x.to(device), y.to(device), chunk.to(device))
        step(len(chunk))


def ascend(
    classifier: Classifier,
    batch: Numbered,
    *,
    threat: Threat,
    steps: int,
    seed: int,
    counter: int = 0,
) -> Tensor:
    """The images after `steps` steps of PGD on cross-entropy from a random start, each where its loss was largest.

    Unlike an attack it goes on where the classifier is fooled, for a fit needs the worst point of every image.
    """
    x, y, ids = batch
    norm, eps = norms.of(threat), threat.eps
    point = norm.random_start(x, eps, seed=seed, sample_ids=ids, stream="fit-start", counter=counter)
    best, largest = point, x.new_full((len(x),), -torch.inf)
    for step in range(steps + 1):
        point = point.detach().requires_grad_()
        with torch.set_grad_enabled(step < steps):
            loss = cross_entropy(logits_of(classifier, point, ids), y)
            total = loss.sum()
        best = torch.where((loss > largest)[:, None, None, None], point, best).detach()
        largest = torch.maximum(largest, loss.detach())
        if step < steps:
            if not total.requires_grad:
                raise ModelError("the model's logits have no gradient with respect to the images, which the fit needs")
            (gradient,) = torch.autograd.grad(total, point)
            point = norm.step(point.detach(), gradient, REACH / steps * eps, x, eps)
    return best


def judge(classifier: Classifier, batches: Iterable[Numbered], *, threat: Threat, seed: int) -> HeldOut:
    """The figures of the images under `JUDGE`."""
    count = clean = robust = 0
    for x, y, ids in batches:
        result = JUDGE.run(classifier, x, y, threat=threat, seed=seed, sample_ids=ids)
        count += len(x)
        clean += len(x) - result.outcome.count(MISCLASSIFIED)
        robust += len(x) - int(result.broken.sum())
    return HeldOut(count, clean / count, robust / count)


def check_range(least: float, most: float, **options: float) -> None:
    """Raise unless each of these options lies between `least` and `most`."""
    for name, value in options.items():
        if not least <= value <= most:
            expected = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
            raise InputError(f"{name} must be {expected}, got {value}")
