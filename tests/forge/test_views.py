from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.calibrate import forge_
from lipforge.forge.head import Head, set_head_
from lipforge.forge.insert import forges, is_changed, remove_, set_ratio_
from lipforge.forge.recipe import recipe_of
from lipforge.forge.tta import TTA, Transform, set_tta_, tta_of
from lipforge.forge.views import forged, plain, smooth_backward, straight_through, with_tta
from tests.nets import ResidualNet, images, seeded


@pytest.fixture
def model() -> nn.Module:
    model = seeded(ResidualNet)
    forge_(model, images(32), ratio=2**-3)
    return model


def test_plain_is_the_model_before_forging(model):
    x = images(4)
    assert torch.equal(plain(model)(x), seeded(ResidualNet)(x))
    assert forges(plain(model)) == {}
    assert len(forges(model)) == 4


def test_plain_works_on_a_model_that_was_never_forged():
    x = images(4)
    assert torch.equal(plain(seeded(ResidualNet))(x), seeded(ResidualNet)(x))


def test_straight_through_has_forged_logits_and_the_gradient_of_identity_masks(model):
    x = images(4).requires_grad_()
    a, b = forged(model)(x), straight_through(model)(x)
    assert torch.equal(a, b)
    (masked,) = torch.autograd.grad(a.sum(), x)
    (through,) = torch.autograd.grad(b.sum(), x)
    assert not torch.equal(masked, through)
    assert through.isfinite().all()


def test_smooth_backward_has_forged_logits_and_its_width_changes_only_the_gradient(model):
    x = images(4).requires_grad_()
    logits = [view(x) for view in (forged(model), smooth_backward(model, width=0.1), smooth_backward(model, width=2.0))]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    masked, narrow, wide = (torch.autograd.grad(each.sum(), x)[0] for each in logits)
    assert narrow.isfinite().all()
    assert not torch.equal(masked, narrow)
    assert not torch.equal(narrow, wide)


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_a_width_that_is_no_width_is_refused(model, width):
    with pytest.raises(InputError, match="width must be above 0"):
        smooth_backward(model, width=width)


def test_views_share_the_memory_of_every_parameter_and_buffer(model):
    for view in (plain(model), forged(model), straight_through(model), smooth_backward(model)):
        own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        assert all(tensor.data_ptr() in own for tensor in (*view.parameters(), *view.buffers()))


@pytest.mark.parametrize("view", [plain, forged])
@pytest.mark.parametrize(
    "convert",
    [
        nn.Module.half,
        nn.Module.bfloat16,
        nn.Module.double,
        lambda module: module.to(torch.float64),
        lambda module: module.to("meta"),
        lambda module: module.to(memory_format=torch.channels_last),
        lambda module: module.requires_grad_(False),
        lambda module: module.block1.double(),
    ],
)
def test_converting_a_view_leaves_the_model_and_other_views_alone(model, view, convert):
    def state(module):
        tensors = [*module.parameters(), *module.buffers()]
        return [(tensor.dtype, tensor.device, tensor.stride(), tensor.requires_grad) for tensor in tensors]

    x, others = images(2), [model, plain(model), forged(model)]
    before = [(state(module), module(x)) for module in others]
    convert(view(model))
    for module, (expected, logits) in zip(others, before, strict=True):
        assert state(module) == expected
        assert torch.equal(module(x), logits)


def test_a_converted_view_is_the_view_of_a_converted_model(model):
    view, x = forged(model).double(), images(2).double()
    logits = view(x)
    assert logits.dtype == torch.float64
    assert torch.equal(logits, forged(model.double())(x))


def test_converting_the_model_leaves_its_views_as_they_are(model):
    view, x = forged(model), images(2)
    before = view(x)
    model.half()
    assert torch.equal(view(x), before)


def test_tied_parameters_stay_tied_in_a_view(model):
    model.block2.conv2.weight = model.block2.conv1.weight = nn.Parameter(torch.zeros(16, 16, 3, 3))
    view: Any = plain(model)
    assert view.block2.conv1.weight is view.block2.conv2.weight


def test_a_changed_weight_shows_in_every_view(model):
    views = [plain(model), forged(model), straight_through(model)]
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(3.0)
    assert all(torch.equal(view(images(2)), torch.full((2, 10), 3.0)) for view in views)


def test_a_view_is_a_snapshot_of_the_ratios(model):
    view, x = forged(model), images(4)
    before = view(x)
    set_ratio_(model, 0.5)
    assert torch.equal(view(x), before)
    assert not torch.equal(forged(model)(x), before)


def test_views_can_be_interleaved_and_called_from_threads(model):
    batches = [images(4, seed=seed) for seed in range(6)]
    views = [plain(model), forged(model), straight_through(model)]
    expected = [[view(batch) for batch in batches] for view in views]

    def gradients(view, batch):
        x = batch.clone().requires_grad_()
        logits = view(x)
        torch.autograd.grad(logits.sum(), x)
        return logits

    with ThreadPoolExecutor(6) as pool:
        jobs = [[pool.submit(gradients, view, batch) for batch in batches] for view in views]
        for row, wanted in zip(jobs, expected, strict=True):
            assert all(torch.equal(job.result(), logits) for job, logits in zip(row, wanted, strict=True))


def test_tensors_outside_parameters_and_buffers_are_shared_too():
    class WithTable(ResidualNet):
        def __init__(self) -> None:
            super().__init__()
            self.tables = {"scale": [torch.ones(10)]}
            self.hidden = torch.ones(10, requires_grad=True) * 2  # not a leaf: deepcopy alone would fail

        def forward(self, x):
            return super().forward(x) * self.tables["scale"][0] * self.hidden

    model = seeded(WithTable)
    view: Any = plain(model)
    assert view.tables["scale"][0] is model.tables["scale"][0]
    assert view.hidden is model.hidden


def test_views_of_a_model_in_train_mode_are_refused(model):
    with pytest.raises(ModelError, match=r"must be in eval mode.*call model.eval\(\)"):
        forged(model.train())


def test_a_forged_view_needs_a_forged_model():
    with pytest.raises(SiteError, match="no forged functions"):
        forged(seeded(ResidualNet))


def test_a_model_that_cannot_be_copied_is_named(model):
    model.handle = (value for value in [1])
    with pytest.raises(ModelError, match="cannot be copied for a view"):
        forged(model)


@pytest.fixture
def changed(model: nn.Module) -> nn.Module:
    """Forged, with scales and shifts, a head and TTA."""
    forges(model)["block2.conv2"].set_affine(torch.linspace(0.5, 1.5, 16), torch.linspace(-1, 1, 16))
    numbers = torch.Generator().manual_seed(7)
    set_head_(model, Head("head", torch.randn(10, 16, generator=numbers), torch.randn(10, generator=numbers)))
    set_tta_(model, "mirror x diagonals")
    return model


def test_every_part_is_at_work_in_a_forged_view_and_none_in_a_plain_one(changed):
    x = images(4)
    assert torch.equal(plain(changed)(x), seeded(ResidualNet)(x))
    assert not is_changed(plain(changed))
    assert torch.equal(forged(changed)(x), changed(x))
    assert recipe_of(forged(changed)) == recipe_of(changed)


@pytest.mark.parametrize("part", ["tta", "head"])
def test_a_model_with_one_part_has_a_forged_view_but_no_mask_to_go_through(part):
    model, x = seeded(ResidualNet), images(2)
    if part == "tta":
        set_tta_(model, "mirror")
    else:
        set_head_(model, Head("head", torch.ones(10, 16), torch.zeros(10)))
    assert torch.equal(forged(model)(x), model(x))
    assert torch.equal(plain(model)(x), seeded(ResidualNet)(x))
    for view in (straight_through, smooth_backward):
        with pytest.raises(SiteError, match="no forged functions"):
            view(model)


@pytest.mark.parametrize("view", [straight_through, smooth_backward])
def test_other_backward_passes_keep_the_logits_of_all_parts(changed, view):
    x = images(2).requires_grad_()
    logits = [forged(changed)(x), view(changed)(x)]
    assert torch.equal(logits[0], logits[1])
    gradients = [torch.autograd.grad(each.sum(), x)[0] for each in logits]
    assert not torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("tta", [None, TTA((Transform(True, 1, 0),))])
def test_a_view_with_other_transforms_keeps_the_other_parts(changed, tta):
    x, view = images(2), with_tta(changed, tta)
    assert tta_of(view) == tta
    assert str(tta_of(changed)) == "mirror x diagonals"
    set_tta_(changed, tta)
    assert torch.equal(view(x), changed(x))
    assert recipe_of(view) == recipe_of(changed)


def test_views_of_all_parts_share_memory_and_leave_the_model_alone(changed):
    own = {tensor.data_ptr() for tensor in (*changed.parameters(), *changed.buffers())}
    before, x = recipe_of(changed), images(2)
    logits = changed(x)
    for make in (plain, forged, straight_through, smooth_backward, lambda model: with_tta(model, None)):
        view = make(changed)
        assert {tensor.data_ptr() for tensor in (*view.parameters(), *view.buffers())} <= own
        remove_(view.half())
    assert recipe_of(changed) == before
    assert torch.equal(changed(x), logits)


def test_views_with_other_transforms_can_be_called_from_threads(changed):
    batches = [images(2, seed=seed, size=16) for seed in range(4)]
    ttas = [None, *(TTA((one,)) for one in (Transform(True), Transform(down=1))), TTA.parse("mirror")]
    views = [plain(changed), forged(changed), *(with_tta(changed, tta) for tta in ttas)]
    expected = [[view(batch) for batch in batches] for view in views]
    with ThreadPoolExecutor(6) as pool:
        jobs = [[pool.submit(view, batch) for view in views] for batch in batches]
        for row, wanted in zip(jobs, zip(*expected, strict=True), strict=True):
            assert all(torch.equal(job.result(), logits) for job, logits in zip(row, wanted, strict=True))
    assert len({str(row[0]) for row in expected}) == len(views)
