"""The folded copy that attacks search on: what is folded, what is left alone, and that only the model decides."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge.attacks import (
    APGD,
    CHECKED,
    PGD,
    Prepared,
    Square,
    attack_text,
    autoattack,
    fast,
    prepare,
)
from lipforge.attacks.folding import Laid, direct_pairs, fold_, folded_copy
from lipforge.attacks.queries import is_misclassified
from lipforge.data import load_data
from lipforge.errors import InputError, ModelError
from lipforge.forge import forge_, forged, plain
from lipforge.models import load_model
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.nets import ResidualNet, ReusingNet, images, seeded


class Branching(nn.Module):
    """Four convs with a batch norm after each, of which only the first is alone with its conv's output."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1, bias=index % 2 == 0) for index in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(4))
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.convs[0](x)), inplace=True)
        shared = self.convs[1](x)
        x = self.norms[1](shared) + shared  # the conv's output is read twice
        x = self.norms[2](F.relu(self.convs[2](x)))  # a ReLU in between, as in pre-activation nets
        out = self.convs[3](x)
        out += x  # rewritten before the norm sees it
        return self.head(self.norms[3](out).mean(dim=(2, 3)))


def test_only_a_norm_that_is_alone_with_its_convs_output_is_folded():
    assert direct_pairs(seeded(Branching), images(1)) == [("convs.0", "norms.0")]


def test_every_norm_of_a_plain_residual_net_is_folded_and_its_logits_stay():
    model = seeded(ResidualNet, inplace=True).double()
    x = images(6).double()
    expected = model(x)
    pairs = direct_pairs(model, x[:1])
    assert pairs == [(f"block{b}.conv{k}", f"block{b}.bn{k}") for b in (1, 2) for k in (1, 2)]
    for pair in pairs:
        fold_(model, *pair)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


def test_the_norms_behind_forged_convs_are_folded_too():
    model, x = seeded(ResidualNet), images(6)
    forge_(model, images(32), ratio=0.25)
    view = forged(model)
    assert direct_pairs(view, x[:1]) == direct_pairs(plain(model), x[:1])
    folded, _ = folded_copy(view, x, "float32")
    assert isinstance(folded, Laid)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.module.modules())
    torch.testing.assert_close(folded(x), view(x), rtol=0, atol=1e-5)
    assert not torch.allclose(plain(model)(x), view(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("affine", [True, False])
def test_a_folded_conv_is_the_conv_and_its_norm(affine):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=affine), nn.BatchNorm2d(4, affine=affine, eps=0.1)).double()
    for _ in range(3):
        model(images(4).double())  # in train mode: the norm learns its statistics
    x = images(2, seed=1).double()
    expected = model.eval()(x)
    fold_(model, "0", "1")
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


def _hooked(where: str) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 900, 3)).eval()
    if where == "conv output":
        model[0].register_forward_hook(lambda module, args, out: out * 2)
    elif where == "norm input":
        model[1].register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    elif where == "conv input":
        model[0].register_forward_pre_hook(lambda module, args: (F.hardshrink(args[0], 0.1),))
    return model


@pytest.mark.parametrize(("where", "folds"), [("conv output", 0), ("norm input", 0), ("conv input", 1), ("none", 1)])
def test_hooks_between_conv_and_norm_forbid_folding_and_those_before_the_conv_do_not(where, folds):
    model = _hooked(where)
    assert len(direct_pairs(model, images(1))) == folds
    x = images(4)
    torch.testing.assert_close(prepare(model, x).folded(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_conv_called_more_than_once_and_a_norm_without_running_statistics_are_left_alone():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.norm(self.conv(x))).mean(dim=(2, 3))

    assert direct_pairs(Twice().eval(), images(1)) == []
    batchwise = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    assert direct_pairs(batchwise, images(1)) == []


def test_the_model_given_is_not_changed():
    model = seeded(ResidualNet)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prepared = prepare(model, images(4))
    assert prepared.original is model
    assert prepared.folded is not model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())
    assert torch.equal(prepared(images(4)), model(images(4)))


@pytest.mark.parametrize("model", [lambda x: x.flatten(1)[:, :4], seeded(ReusingNet)], ids=["function", "no norms"])
def test_what_cannot_be_folded_is_its_own_folded_copy(model):
    assert prepare(model, images(4)).folded is model


def test_a_folded_copy_that_disagrees_is_not_used():
    class Cached(nn.Module):
        """Remembers its first logits: a copy of it has another first time."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = seeded(ResidualNet), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.net(x) * self.calls

    model = Cached().eval()
    assert prepare(model, images(4)).folded is model


class Flattening(nn.Module):
    """A conv and a batch norm, flattened with `view`, which no channels-last tensor allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.head(x.view(x.size(0), -1))


class Reading(Flattening):
    """Looks at its batch norm's weight, which a folded copy does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.bn.weight.mean()


class OneWay(Flattening):
    """Goes forward in any layout, and back only in the usual one."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        if x.requires_grad:
            x.register_hook(lambda gradient: x.view(-1)[:0].sum() + gradient)
        return self.head(F.relu(x).flatten(1))


class OneByOne(Flattening):
    """With a single image it asks for the usual layout."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.head(x.flatten(1) if len(x) > 1 else x.view(1, -1))


@pytest.mark.parametrize(("kind", "folds"), [(Flattening, True), (Reading, False), (OneWay, True), (OneByOne, True)])
def test_a_model_that_no_folded_copy_suits_as_it_is_is_attacked_all_the_same(kind, folds):
    model, x = seeded(kind), images(6, size=6)
    folded = prepare(model, x).folded
    assert (folded is not model) == folds
    if folds:  # the norm is folded, in the layout that the model was written for
        assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.module.modules())  # type: ignore[attr-defined]
        assert folded.layout is torch.contiguous_format  # type: ignore[attr-defined]
    y = model(x).argmax(dim=1)
    result = fast().run(model, x, y, threat=Threat("linf", 0.05))
    assert torch.equal(result.broken, is_misclassified(model, result.images, y))


def test_the_models_own_error_is_the_one_that_shows():
    class Small(Flattening):
        """Takes one image and no more."""

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 1:
                raise RuntimeError("one image at a time")
            return super().forward(x)

    with pytest.raises(ModelError, match="RuntimeError: one image at a time"):
        prepare(seeded(Small), images(6, size=6))


def test_every_pass_over_the_checked_images_is_counted_where_the_first_layout_fails():
    model, x, calls = seeded(Flattening), images(20, size=6), list[int]()
    y = model(x).argmax(dim=1)
    model.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    result = fast().run(model, x, y, threat=Threat("linf", 1e-4))
    # One image records what can be folded, one tries the gradient in the second layout; the first did not get so far.
    assert sum(calls) - int(result.forwards.sum()) == 2


def test_the_bundled_model_is_prepared_and_agrees_on_real_images():
    model = load_model("cifar10-resnet")
    x, _ = load_data("cifar10-sample").batch(range(8))
    prepared = prepare(model, x)
    assert prepared.folded is not model
    with torch.no_grad():
        torch.testing.assert_close(prepared.folded(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_success_on_the_folded_copy_alone_does_not_count_and_does_not_end_the_attack():
    model = small_net()
    x, y = small_images(model, 40)
    liar = Prepared(model, lambda images: 10 * model(images).flip(1))
    assert is_misclassified(liar.folded, x, y).any()
    result = PGD(steps=3).run(liar, x, y, threat=Threat("linf", 1e-5))
    assert not result.broken.any()
    # No start ends it: three steps, the look at the last, and a confirmation wherever the folded copy was fooled.
    assert (result.forwards >= 4).all()
    assert result.backwards.tolist() == [3] * 40


@pytest.mark.parametrize("attack", [PGD(steps=5), APGD(steps=5), Square(queries=100)], ids=lambda attack: attack.name)
def test_an_attack_on_a_prepared_model_finds_what_it_finds_on_the_model(attack):
    model = small_net()
    x, y = small_images(model, 60)
    prepared = prepare(model, x)
    assert prepared.folded is not model
    plain, folded = (attack.run(each, x, y, threat=Threat("linf", 0.015)) for each in (model, prepared))
    assert 5 < plain.broken.sum() < 60
    # Rounding differs, so a gradient near 0 may point the other way: one image in 60 is allowed to differ.
    assert (plain.broken != folded.broken).sum() <= 1
    assert torch.equal(folded.broken, is_misclassified(model, folded.images, y))


def test_fast_folds_unless_told_not_to():
    model = small_net()
    x, y = small_images(model, 20)
    calls = []
    model.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    counts = {}
    for prepared in (True, False):
        calls.clear()
        result = fast(fold=prepared).run(model, x, y, threat=Threat("linf", 0.005))
        assert 0 < result.broken.sum() < 20
        counts[prepared] = sum(calls), int(result.forwards.sum())
    # Hooks are copied with the model, so all passes are seen; two on 32 images check the folded copy, two on 1 record
    # it and try its gradient.
    assert counts[True][0] - counts[True][1] == 2
    assert counts[False][0] == counts[False][1]
    assert counts[True][1] - counts[False][1] >= 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int8"}, "one of float32, bfloat16, float16"),
        ({"precision": "float16", "fold": False}, "leave"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        autoattack(**settings)


def test_an_unknown_precision_and_a_prepared_model_in_train_mode_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="precision must be one of"):
        prepare(model, x, precision="int8")  # type: ignore[arg-type]
    prepared = prepare(model, x)
    model.train()
    with pytest.raises(ModelError, match="eval mode"):
        PGD()(prepared, x, y, threat=Threat("linf", 0.01))


@pytest.mark.parametrize("attack", [fast(), autoattack()], ids=lambda attack: attack.name)
def test_a_model_is_prepared_once_by_the_attacks_that_fold_and_not_again_in_a_batch(attack):
    model = small_net()
    x, y = small_images(model, CHECKED + 1)
    prepared = attack.prepared(model, x)
    assert isinstance(prepared, Prepared)
    assert prepared.folded is not model
    assert attack.prepared(prepared, x) is prepared
    threat = Threat("linf", 0.1)
    alone, once = (attack.run(each, x, y, threat=threat) for each in (model, prepared))
    assert torch.equal(alone.images, once.images)
    assert alone.outcome == once.outcome
    # Two passes over the first images, with and without noise, check a folded copy that is made for this batch.
    assert (alone.forwards - once.forwards).tolist() == [4] * CHECKED + [0]


def test_a_model_that_has_nothing_to_fold_is_not_copied_again_in_every_batch():
    class Uncopied(nn.Flatten):
        def __deepcopy__(self, memo):
            copies.append(self)
            raise TypeError

    copies: list[nn.Module] = []
    model = nn.Sequential(Uncopied(), nn.Linear(3 * 36, 4)).eval()
    x = images(4, size=6)
    y = model(x).argmax(dim=1)
    prepared = fast().prepared(model, x)
    fast().run(prepared, x, y, threat=Threat("linf", 1e-4))
    assert len(copies) == 1


@pytest.mark.parametrize(
    "attack", [PGD(), autoattack("rand"), autoattack(fold=False), fast(fold=False)], ids=attack_text
)
def test_other_attacks_take_the_model_as_it_is(attack):
    model = small_net()
    assert attack.prepared(model, small_images(model)[0]) is model
