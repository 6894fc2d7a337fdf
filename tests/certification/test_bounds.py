"""Bounds against points of the ball, exhaustive grids, linear programs and closed forms."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import norms
from lipforge.certification import Region, bounds_of, margins, network_of
from lipforge.certification.relaxations import Curve
from lipforge.errors import ModelError
from lipforge.forge import Mask, MeanCentred, Piecewise, Smooth, Step
from lipforge.types import Threat

MASKS = (Step(), Piecewise(d=0.5), Smooth(a=20, b=10), Smooth(a=3, b=0, argument="signed"), MeanCentred())


class Mixed(nn.Module):
    """Every layer that has a bound: conv, batch norm, ReLU, residual add, max and average pooling, flatten, linear."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.conv3 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.pool, self.average = nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(2)
        self.linear1, self.linear2 = nn.Linear(4, 5), nn.Linear(5, 3)
        with torch.no_grad():
            for tensor in self.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.7)
            self.bn1.running_var.abs_().add_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.4) / 0.3
        x = torch.relu(self.bn1(self.conv1(x)))
        x = x + torch.relu_(self.conv2(x))
        x = self.average(torch.relu(self.conv3(self.pool(x))))
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))


def mixed_net(seed: int, mask: Mask | None = None, *, tta: str | None = None, **forging: Any) -> nn.Module:
    """The net with random weights; with a mask every layer is forged, the first and the last as well."""
    generator = torch.Generator().manual_seed(seed)
    model = Mixed(generator).eval()
    if mask is not None:
        lf.forge_(model, torch.rand(16, 2, 8, 8, generator=generator), mask=mask, rules=["name:*"], **forging)
    lf.set_tta_(model, tta)
    return model.requires_grad_(False)


def lower_bounds(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, *, full: bool = True) -> Tensor:
    with torch.no_grad():
        return margins(bounds_of(network_of(model, x[0]), Region.of(x, threat), full=full), y)


def margins_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Logit y minus every logit, (N, K), in the model's own float32; infinite for y itself."""
    logits = model(x.float()).double()
    return (logits.gather(1, y[:, None]) - logits).scatter(1, y[:, None], torch.inf)


def points_of(x: Tensor, threat: Threat, generator: torch.Generator) -> Tensor:
    """Random points of the ball around one image, its corners or surface, cut with [0, 1]."""
    noise = torch.randn(200, *x.shape, generator=generator)
    if threat.norm == "linf":
        step = threat.eps * torch.cat([noise[:100].sign(), noise[100:].clamp(-1, 1)])
    else:
        # Few entries for l1: there a corner changes one.
        keep = torch.rand(noise.shape, generator=generator) < torch.rand(200, 1, 1, 1, generator=generator)
        noise = noise * keep
        size = noise.flatten(1).norm(p=2 if threat.norm == "l2" else 1, dim=1).clamp(min=1e-9)
        step = threat.eps * 0.999999 * noise / size.view(-1, 1, 1, 1)
    return (x + step).clamp(0, 1)


def pgd_points(model: nn.Module, x: Tensor, y: int, threat: Threat) -> Tensor:
    """Where steps along the sign of the gradient of each margin lead, inside the linf ball."""
    others = [k for k in range(3) if k != y]
    point = x.repeat(len(others), 1, 1, 1)
    for _ in range(8):
        point = point.detach().requires_grad_()
        logits = model(point)
        sum(logits[row, y] - logits[row, k] for row, k in enumerate(others)).backward()
        step = point.detach() - threat.eps / 3 * point.grad.sign()
        point = (x + (step - x).clamp(-threat.eps, threat.eps)).clamp(0, 1)
    return point.detach()


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    seed=st.integers(0, 10_000),
    mask=st.sampled_from([None, *MASKS]),
    ratio=st.sampled_from([0.02, 0.3]),
    per_channel=st.booleans(),
    threat=st.sampled_from([("linf", 0.02), ("linf", 0.2), ("l2", 0.3), ("l1", 0.5)]),
    tta=st.sampled_from([None, None, "mirror", "diagonals"]),
)
def test_no_point_of_the_ball_has_a_smaller_margin(seed, mask, ratio, per_channel, threat, tta):
    threat, generator = Threat(*threat), torch.Generator().manual_seed(seed)
    model = mixed_net(seed, mask, tta=tta, **({} if mask is None else {"ratio": ratio, "per_channel": per_channel}))
    x = torch.rand(1, 2, 8, 8, generator=generator)
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    points = points_of(x[0], threat, generator)
    if threat.norm == "linf":
        points = torch.cat([points, pgd_points(model, x[0], int(y), threat)])
    with torch.no_grad():
        worst = margins_at(model, torch.cat([x, points]), y.expand(len(points) + 1)).amin(0)
    for full in (False, True):
        assert (lower_bounds(model, x, y, threat, full=full)[0] <= worst).all()


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
@pytest.mark.parametrize("behind_relu", [False, True])
def test_lines_hold_on_a_fine_grid_and_on_both_sides_of_each_jump(mask, behind_relu):
    """One number through a forged function: every point of 20,000, and the neighbours of the threshold in float64."""
    model = nn.Sequential(nn.Flatten(), nn.ReLU() if behind_relu else nn.Identity(), nn.Linear(1, 2, bias=False))
    model = nn.Sequential(nn.Identity(), model).eval()
    lf.forge_(model, torch.tensor([0.2, 0.5, 0.9]).view(3, 1, 1, 1), mask=mask, ratio=0.5, rules=["name:1.2"])
    network = network_of(model, torch.zeros(1, 1, 1))
    (curve,) = [node.op for node in network.nodes if isinstance(node.op, Curve) and not node.op.is_relu]
    (forge,) = lf.forges(model).values()
    edge = float(forge.threshold)
    jumps = [np.nextafter(sign * edge, end) for sign in (-1, 1) for end in (-9, 9)] + [edge, -edge]
    for low, high in itertools.combinations([-0.9, -edge, -0.2, -1e-3, 0.0, 0.1, edge, 0.6, 1.1], 2):
        room = 1e-6 * max(abs(low), abs(high))  # every box is widened by that
        lines = curve.lines(*(torch.tensor([[end]], dtype=torch.float64) for end in (low - room, high + room)))
        inside = [point for point in jumps if low <= point <= high]
        z = torch.tensor([*np.linspace(low, high, 2000), *inside], dtype=torch.float64).view(-1, 1)
        f = curve.apply(z)
        assert (lines.low_slope * z + lines.low_offset <= f + 1e-12).all()
        assert (lines.high_slope * z + lines.high_offset >= f - 1e-12).all()


def test_the_relaxation_of_relu_is_that_of_crown():
    """Above the chord, below 0 or the identity, whichever leaves the smaller triangle."""
    relu = Curve(torch.relu, torch.zeros(1, dtype=torch.float64), is_relu=True)
    low, high = (torch.tensor([ends], dtype=torch.float64) for ends in ([-1, -3, 1, -2], [3, 1, 2, -1]))
    lines = relu.lines(low, high)
    expected = [[1, 0, 1, 0], [0, 0, 0, 0], [0.75, 0.25, 1, 0], [0.75, 0.75, 0, 0]]
    for found, values in zip(vars(lines).values(), expected, strict=True):
        torch.testing.assert_close(found, torch.tensor([values], dtype=torch.float64))


def linear_model(classes: int = 3) -> nn.Sequential:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, classes))
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", float("inf"))])
@pytest.mark.parametrize("full", [False, True])
def test_a_linear_classifier_has_its_closed_form(norm, dual, full):
    """Margin minus eps times the dual norm of the weights' difference; 1e-4 is more than the room for rounding."""
    model, eps = linear_model(), 0.05
    x = 0.2 + 0.6 * torch.rand(5, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    weight = next(model.parameters()).double()
    gap = (weight[y].unsqueeze(1) - weight).norm(p=dual, dim=2)
    expected = margins_at(model, x, y) - eps * gap
    torch.testing.assert_close(lower_bounds(model, x, y, Threat(norm, eps), full=full), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_the_cut_with_the_images_range_is_exact_for_linear_classifiers(norm):
    """Against a linear program over the ball and [0, 1], for images in the corners of the range."""
    model, eps = linear_model(), 0.7
    x = torch.rand(3, 2, 2, 2, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    y = model(x).argmax(1)
    found = lower_bounds(model, x, y, Threat(norm, eps))
    weight, bias = (part.double().numpy() for part in model.parameters())
    for image, k in itertools.product(range(3), range(3)):
        if k != y[image]:
            start, label = x[image].flatten().double().numpy(), int(y[image])
            cost = weight[label] - weight[k]
            # x = start + plus - minus, with the sum or the largest of plus and minus bounded by eps
            rows = np.ones((1, 16)) if norm == "l1" else np.hstack([np.eye(8), np.eye(8)])
            box = np.vstack([np.hstack([np.eye(8), -np.eye(8)]), np.hstack([-np.eye(8), np.eye(8)])])
            solved = linprog(
                np.concatenate([cost, -cost]),
                A_ub=np.vstack([rows, box]),
                b_ub=np.concatenate([np.full(len(rows), eps), 1 - start, start]),
            )
            expected = solved.fun + cost @ start + bias[label] - bias[k]
            assert float(found[image, k]) == pytest.approx(expected, abs=1e-4)


def tiny_relu_net(seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval().requires_grad_(False)


def triangle_minimum(model: nn.Sequential, boxes: list[tuple[Tensor, Tensor]], low: Tensor, high: Tensor) -> float:
    """The least of logit 0 minus logit 1 under the triangle relaxation of every ReLU: a linear program."""
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    layers = [(layer.weight.double().numpy(), layer.bias.double().numpy()) for layer in linear]
    widths = [2, 6, 6, 5, 5]  # image, then pre-activation and activation of both hidden layers
    starts, total = np.cumsum([0, *widths]), sum(widths)
    equal, equal_to, less, less_than = [], [], [], []
    bounds = [(float(a), float(b)) for a, b in zip(low, high, strict=True)] + [(None, None)] * (total - 2)
    for place, (weight, bias) in enumerate(layers[:2]):
        before, here, after = starts[2 * place], starts[2 * place + 1], starts[2 * place + 2]
        for unit, (row, offset) in enumerate(zip(weight, bias, strict=True)):
            line = np.zeros(total)
            line[before : before + len(row)], line[here + unit] = row, -1
            equal.append(line)
            equal_to.append(-offset)
            least, most = (float(side[0, unit]) for side in boxes[place])
            slope = 1.0 if least >= 0 else 0.0 if most <= 0 else most / (most - least)
            for below in (0.0, 1.0) if least < 0 < most else (slope,):
                line = np.zeros(total)
                line[here + unit], line[after + unit] = below, -1  # activation >= below * z
                less.append(line)
                less_than.append(0.0)
            line = np.zeros(total)
            line[here + unit], line[after + unit] = -slope, 1  # activation <= slope * (z - least)
            less.append(line)
            less_than.append(-slope * least if least < 0 < most else 0.0)
    weight, bias = layers[2]
    cost = np.zeros(total)
    cost[starts[4] : starts[4] + 5] = weight[0] - weight[1]
    solved = linprog(cost, A_ub=np.array(less), b_ub=less_than, A_eq=np.array(equal), b_eq=equal_to, bounds=bounds)
    assert solved.status == 0
    return float(solved.fun + bias[0] - bias[1])


@pytest.mark.parametrize("seed", range(6))
def test_intervals_are_below_crown_below_the_linear_program_below_the_truth(seed):
    """Two pixels, so that a grid of 40,000 points is exhaustive but for its step."""
    model, eps = tiny_relu_net(seed), 0.15
    x, y = torch.rand(1, 1, 1, 2, generator=torch.Generator().manual_seed(seed)), torch.tensor([0])
    network, region = network_of(model, x[0]), Region.of(x, Threat("linf", eps))
    with torch.no_grad():
        quick, full = (bounds_of(network, region, full=full) for full in (False, True))
    by_intervals = float(quick.boxes[-1][0][0, 0] - quick.boxes[-1][1][0, 1])
    crown = float(margins(full, y)[0, 1])
    hidden = [full.boxes[node.parents[0]] for node in network.nodes if isinstance(node.op, Curve)]
    program = triangle_minimum(model, hidden, *(side.flatten() for side in (region.low, region.high)))
    ends = zip(region.low.flatten().tolist(), region.high.flatten().tolist(), strict=True)
    sides = [torch.linspace(low, high, 200) for low, high in ends]
    grid = torch.cartesian_prod(*sides).view(-1, 1, 1, 2)
    truth = float(margins_at(model, grid, torch.zeros(len(grid), dtype=torch.int64))[:, 1].min())
    assert by_intervals - 1e-4 <= crown <= program + 1e-4
    assert program <= truth + 1e-4


def test_bounds_are_the_margin_itself_as_eps_vanishes():
    model = mixed_net(3, Smooth(), ratio=1e-6)
    x, y = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    found = lower_bounds(model, x, y, Threat("linf", 1e-9))
    scale = model(x).abs().max()
    torch.testing.assert_close(found, margins_at(model, x, y), atol=float(1e-3 * scale), rtol=0)


def test_the_bounds_of_an_image_do_not_depend_on_its_neighbours():
    model, threat = mixed_net(4, Step(), ratio=0.1), Threat("linf", 0.01)
    x, y = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2])
    together = lower_bounds(model, x, y, threat)
    torch.testing.assert_close(together[1:2], lower_bounds(model, x[1:2], y[1:2], threat))


def test_crown_takes_no_more_work_than_intervals_announce():
    model, threat, done = mixed_net(4, Step(), ratio=0.1), Threat("linf", 0.01), list[int]()
    x = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    network, region = network_of(model, x[0]), Region.of(x, threat)
    announced = bounds_of(network, region, full=False).crown_work()
    bounds_of(network, region, full=True, step=done.append)
    assert announced.shape == (3,)
    assert 0 < sum(done) <= float(announced.sum())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.GELU(), r"layer '1' \(GELU\) has no bound: GELU is not supported"),
        (nn.Softmax(1), r"layer '1' \(Softmax\) has no bound: softmax is not supported"),
        (nn.Softsign(), r"layer '1' \(Softsign\) has no bound: its operator div is not supported"),
        (nn.MaxPool2d(3, 2, ceil_mode=True), r"layer '1' \(MaxPool2d\) has no bound"),
        (nn.ConstantPad2d(1, -torch.inf), r"layer '1' \(ConstantPad2d\) has no bound"),
    ],
)
def test_a_layer_without_a_bound_is_named_with_the_alternative(layer, message):
    model = nn.Sequential(nn.Identity(), layer, nn.Flatten(), nn.LazyLinear(2)).eval()
    model(torch.zeros(1, 2, 8, 8))
    with pytest.raises(ModelError, match=message + ".*Bounds exist for conv, linear, .*lipforge certify"):
        network_of(model, torch.zeros(2, 8, 8))


class Patches(nn.Module):
    """Images (N, 2, 8, 8) as four tokens of 32 numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).unflatten(1, (4, 32))


class ClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)


@pytest.mark.parametrize("first", [ClassToken(), nn.Identity()], ids=["with class token", "without"])
def test_a_transformer_is_refused_in_words_that_users_know(first):
    layer = nn.TransformerEncoderLayer(32, 2, dim_feedforward=8, activation="gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(Patches(), first, layer, nn.Flatten(), nn.LazyLinear(3)).eval()
    model(torch.zeros(1, 2, 8, 8))
    with pytest.raises(ModelError, match=r"attention.* not supported\. Bounds exist for .*lipforge certify") as caught:
        network_of(model, torch.zeros(2, 8, 8))
    assert "cat" not in str(caught.value).replace("concatenation", "").replace("certify", "")


class Branching(nn.Module):
    """Another linear map where the image is bright: recorded operators see one branch only."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)[:, :2]
        return flat * 2 if float(x.mean()) > 0.5 else -flat


def test_a_model_that_branches_on_its_images_is_refused():
    with pytest.raises(ModelError, match=r"depend on the values of its images.*lipforge certify"):
        network_of(Branching().eval(), torch.ones(2, 8, 8))


class Centred(nn.Module):
    """Takes the mean image of the batch away."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0, keepdim=True)).flatten(1)


def test_a_model_that_mixes_images_is_refused():
    with pytest.raises(ModelError, match="mixes its images"):
        network_of(Centred().eval(), torch.ones(2, 8, 8))


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.03), ("l2", 0.5), ("l1", 12.0)])
def test_every_point_that_an_attack_may_use_is_in_the_region(norm, eps):
    x = torch.full((1, 3, 8, 8), 0.5)
    region, slack = Region.of(x, Threat(norm, eps)), norms.of(norm).slack(eps, x.dtype)
    assert region.eps >= eps + slack
    assert float(region.high.max()) >= 0.5 + min(eps, 0.5)


def test_what_is_no_module_is_refused():
    with pytest.raises(ModelError, match=r"a torch\.nn\.Module, got function"):
        network_of(lambda x: x, torch.ones(2, 8, 8))
