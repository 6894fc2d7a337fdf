"""Test-time augmentation against images moved by numpy and logits averaged by hand."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.insert import remove_
from lipforge.forge.recipe import architecture_digest, weights_digest
from lipforge.forge.tta import NAMES, TTA, Transform, set_tta_, tta_of
from lipforge.runs.identity import model_identity
from tests.forge.test_insert import forged_model
from tests.nets import PlainNet, ResidualNet, images, seeded

MIRROR = TTA.parse("mirror")
MANY = TTA((Transform(), Transform(True, 2, -1), Transform(False, -3, 4)))


def changed(tta: TTA | str = "mirror", build: Any = ResidualNet) -> Any:
    model = seeded(build)
    set_tta_(model, tta)
    return model


def moved(x: Tensor, transform: Transform) -> Tensor:
    """The oracle: mirror, pad by reflection on all sides, and cut out where the image has gone."""
    pixels = x.numpy()[..., ::-1] if transform.mirror else x.numpy()
    edge = max(abs(transform.down), abs(transform.right))
    padded = np.pad(pixels, ((0, 0), (0, 0), (edge, edge), (edge, edge)), mode="reflect")
    top, left = edge - transform.down, edge - transform.right
    return torch.from_numpy(padded[..., top : top + x.shape[-2], left : left + x.shape[-1]].copy())


@pytest.mark.parametrize(
    "transform",
    [Transform(), Transform(True), Transform(down=1), Transform(right=-1), Transform(True, -2, 3), Transform(down=31)],
    ids=str,
)
def test_a_transform_moves_pixels_as_numpy_does(transform):
    x = images(3)
    assert torch.equal(transform(x), moved(x, transform))


def test_a_shift_goes_down_and_right():
    x = torch.arange(12.0).view(1, 1, 3, 4)
    assert torch.equal(Transform(down=1)(x)[0, 0, 1:], x[0, 0, :2])
    assert torch.equal(Transform(right=1)(x)[0, 0, :, 1:], x[0, 0, :, :3])


@pytest.mark.parametrize("tta", [*map(TTA.parse, NAMES), MANY], ids=str)
@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_the_model_answers_with_the_mean_over_the_transforms(tta, mean):
    """In float64, as a network may round another way in a larger batch; PlainNet sees where a pixel is."""
    x = images(3).double()
    each = torch.stack([seeded(PlainNet).double()(moved(x, transform)) for transform in tta.transforms])
    expected = each.mean(0) if mean == "logits" else each.softmax(-1).mean(0).log()
    logits = changed(TTA(tta.transforms, mean), PlainNet).double()(x)
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=0)
    assert (expected - each[0]).abs().max() > 1e-3


def test_the_network_runs_once_on_all_copies():
    model, shapes = changed(MANY), list[tuple[int, ...]]()
    model.stem.register_forward_hook(lambda layer, args, out: shapes.append(tuple(args[0].shape)))
    assert model(images(4)).shape == (4, 10)
    assert shapes == [(12, 3, 32, 32)]


@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_no_images_have_no_logits(mean):
    assert changed(TTA(MANY.transforms, mean))(images(0)).shape == (0, 10)


def test_names_stand_for_their_transforms():
    shifts = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
    assert TTA.parse("shifts") == TTA(tuple(Transform(False, *shift) for shift in shifts))
    assert TTA.parse("diagonals") == TTA((Transform(), Transform(False, 1, 1), Transform(False, -1, -1)))
    assert set(TTA.parse("mirror x shifts").transforms) == {
        Transform(flip, *shift) for flip in (False, True) for shift in shifts
    }
    assert [TTA.parse(name).cost for name in NAMES] == [2, 3, 5, 6, 10]
    assert [str(TTA.parse(name)) for name in NAMES] == list(NAMES)
    assert TTA.parse(" mirror  x shifts ") == TTA.parse("mirror x shifts")
    assert TTA.parse("diagonals by 3") == TTA((Transform(), Transform(False, 3, 3), Transform(False, -3, -3)))
    for text in ("shifts by 2", "mirror x diagonals by 12"):
        assert str(TTA.parse(text)) == text
    assert TTA.parse("shifts by 1") == TTA.parse("shifts")
    assert str(TTA(MIRROR.transforms, "probabilities")) == "mirror, mean of probabilities"
    assert str(TTA((Transform(True, 0, 2),))) == "1 transforms (mirror, shift +0 +2)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "Mirror",
        "mirror x",
        "mirror x none",
        "shifts x mirror",
        "mirror,shifts",
        "mirror by 2",
        "shifts by 0",
        1,
    ],
)
def test_an_unknown_name_is_refused_and_the_known_ones_are_named(text):
    model = changed()
    with pytest.raises(
        InputError, match=r"tta must be one of mirror, diagonals, .*, mirror x shifts, those with shifts .*, got"
    ):
        set_tta_(model, text)
    assert tta_of(model) == MIRROR


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ((), "at least one"),
        ([Transform()], "must be a tuple of Transform objects"),
        (Transform(), "must be a tuple"),
        (("mirror",), "must be a tuple of Transform objects"),
        ((Transform(), Transform(True), Transform()), "must differ from each other, got identity, mirror, identity"),
    ],
)
def test_transforms_that_are_none_are_refused(transforms, message):
    with pytest.raises(InputError, match=message):
        TTA(transforms)


@pytest.mark.parametrize("wrong", [{"mirror": 1}, {"down": 0.5}, {"right": True}, {"down": None}])
def test_a_transform_of_another_kind_is_refused(wrong):
    with pytest.raises(InputError, match="mirror true or false and whole pixels"):
        Transform(**wrong)


def test_an_unknown_mean_is_refused():
    with pytest.raises(InputError, match="mean must be one of logits, probabilities, got 'median'"):
        TTA((Transform(),), "median")  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("transform", [Transform(down=8), Transform(right=-9), Transform(True, 10**30)], ids=str)
def test_a_shift_as_large_as_the_image_is_refused(transform):
    with pytest.raises(InputError, match=r"smaller than the image \(8 x 8\)"):
        changed(TTA((transform,)))(images(1, size=8))


class Answering(ResidualNet):
    """It returns what `form` makes of its logits."""

    form: Any

    def forward(self, x: Tensor) -> Any:
        return self.form(super().forward(x))


def test_a_model_that_returns_no_logits_is_named():
    with pytest.raises(ModelError, match=r"must return logits \(N, K\).* got \(10,\); wrap it"):
        changed(build=type("Other", (Answering,), {"form": lambda self, logits: logits[0]}))(images(1))


def test_logits_are_averaged_in_whatever_form_they_come():
    answering = changed(build=type("Other", (Answering,), {"form": lambda self, logits: (logits, None)}))
    x = images(2)
    assert torch.equal(answering(x), changed()(x))


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """All that must come back: classes, attributes of every module, keys and bytes."""
    parts = [(name, type(part), {**vars(part)}) for name, part in model.named_modules()]
    return str(model), parts, list(model.state_dict()), weights_digest(model)


@pytest.mark.parametrize("remove", [remove_, lambda model: set_tta_(model, None)])
@pytest.mark.parametrize("tta", ["mirror", MANY], ids=str)
def test_removal_is_exact(remove, tta):
    model, x = seeded(ResidualNet), images(3)
    before, logits = state_of(model), model(x)
    set_tta_(model, tta)
    assert not torch.equal(model(x), logits)
    remove(model)
    assert state_of(model) == before
    assert torch.equal(model(x), logits)
    assert tta_of(model) is None
    remove(model)
    assert state_of(model) == before


def test_keys_digests_and_kind_do_not_change():
    model, base = changed(), seeded(ResidualNet)
    assert list(model.state_dict()) == list(base.state_dict())
    assert architecture_digest(model) == architecture_digest(base)
    assert weights_digest(model) == weights_digest(base)
    assert isinstance(model, ResidualNet)
    assert type(model).__name__ == "ResidualNet"
    assert "tta=mirror" in str(model)
    model.load_state_dict(seeded(ResidualNet, 1).state_dict())
    assert weights_digest(model) == weights_digest(seeded(ResidualNet, 1))


def test_a_run_tells_models_with_other_transforms_apart():
    models = [seeded(ResidualNet), changed(), changed("shifts"), changed(TTA(MIRROR.transforms, "probabilities"))]
    assert len({str(model_identity(model)) for model in models}) == 4
    assert model_identity(changed()) == model_identity(models[1])


def test_one_tta_takes_the_place_of_another():
    model, x = changed("mirror x shifts"), images(2)
    set_tta_(model, MANY)
    assert tta_of(model) == MANY
    assert torch.equal(model(x), changed(MANY)(x))
    set_tta_(model, None)
    assert type(model) is ResidualNet
    assert "class_without_tta" not in vars(model)


class Flagged(ResidualNet):
    """Has an attribute called `tta`, as models from image contests do."""

    def __init__(self) -> None:
        super().__init__()
        self.tta = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.tta(x))


def test_a_model_may_have_a_tta_of_its_own():
    model, x = changed(build=Flagged), images(2)
    assert torch.equal(model(x), changed()(x))
    assert tta_of(seeded(Flagged)) is None


def test_a_sequential_model_can_be_changed():
    model, x = changed(build=lambda: nn.Sequential(PlainNet(), nn.Softplus())), images(2)
    base = nn.Sequential(seeded(PlainNet), nn.Softplus())
    torch.testing.assert_close(model(x), (base(x) + base(x.flip(-1))) / 2)
    assert isinstance(model[0], PlainNet)
    set_tta_(model, None)
    assert type(model) is nn.Sequential


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_models_are_changed_inside(wrap):
    model, x = seeded(PlainNet), images(2)
    wrapped = wrap(model)
    set_tta_(wrapped, "mirror")
    assert tta_of(model) == tta_of(wrapped) == MIRROR
    torch.testing.assert_close(wrapped(x), changed(build=PlainNet)(x))
    remove_(wrapped)
    assert torch.equal(model(x), seeded(PlainNet)(x))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, *(lambda m, p=p: pickle.loads(pickle.dumps(m, p)) for p in (0, 2, 5))]
)
def test_copies_have_it_and_are_independent(duplicate):
    model, x = changed(MANY), images(2)
    other = duplicate(model)
    assert tta_of(other) == MANY
    assert type(other) is type(model)
    assert torch.equal(other(x), model(x))
    set_tta_(other, None)
    assert type(other) is ResidualNet
    assert tta_of(model) == MANY


class OwnPickleNet(ResidualNet):
    """Pickles by a function of its own."""

    def __reduce__(self):
        return type(self), (), self.__dict__


def test_a_model_that_pickles_itself_has_it_after_that():
    model, x = forged_model(OwnPickleNet, ratio=0.5), images(2)
    set_tta_(model, MANY)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), model(x))
        remove_(other)
        assert type(other) is OwnPickleNet
        assert torch.equal(other(x), seeded(OwnPickleNet)(x))


def test_gradients_are_the_mean_of_those_through_each_transform():
    """Witness: autograd through each transform alone, moved back by hand for the mirror."""
    x, base = images(2).double().requires_grad_(), seeded(ResidualNet).double()
    (gradient,) = torch.autograd.grad(changed().double()(x).square().sum(), x)
    straight, mirrored = x.detach().requires_grad_(), x.detach().flip(-1).requires_grad_()
    slope = base(straight) + base(mirrored)  # of the square of half the sum
    halves = [torch.autograd.grad(base(each), each, slope.detach() / 2)[0] for each in (straight, mirrored)]
    torch.testing.assert_close(gradient, halves[0] + halves[1].flip(-1))


@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_gradients_are_those_of_finite_differences(mean):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).double().eval()
    set_tta_(model, TTA((Transform(), Transform(True, 1, -2)), mean))
    assert torch.autograd.gradcheck(model, images(2, size=4).double().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_other_precisions_keep_their_type(dtype, mean):
    model = changed(TTA(MANY.transforms, mean))
    logits = copy.deepcopy(model).to(dtype)(images(2).to(dtype))
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), model(images(2)), atol=0.02, rtol=0)  # bfloat16 has 8 bits


def test_tta_inside_a_model_is_named_instead_of_overlooked():
    model = nn.Sequential(nn.Identity(), changed()).eval()
    with pytest.raises(SiteError, match="TTA is set on '1' inside the model"):
        tta_of(model)
    with pytest.raises(SiteError, match="TTA is set on '1' inside the model"):
        remove_(model)
    set_tta_(model[1], None)
    assert tta_of(model) is None
