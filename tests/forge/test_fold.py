import pytest
import torch
from torch import nn

from lipforge.data import from_arrays
from lipforge.errors import InputError, RecipeError, SiteError
from lipforge.forge.calibrate import forge_
from lipforge.forge.fold import count_zeros, fold_, load_fold, with_fold
from lipforge.forge.insert import forges, insert_, remove_
from lipforge.forge.recipe import recipe_of
from lipforge.forge.sites import find_sites
from lipforge.forge.views import plain
from tests.nets import ResidualNet, TorchAttentionNet, Transformer, images, seeded


def forged_model(build=ResidualNet, ratio=0.25):
    model = seeded(build)
    forge_(model, images(32), ratio=ratio)
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


@pytest.mark.parametrize("build", [ResidualNet, Transformer])
def test_the_counts_are_those_of_the_forged_forward_pass(build):
    model, x = forged_model(build), images(12, seed=1)
    seen: dict[str, torch.Tensor] = {}
    for name, forge in forges(model).items():
        forge.register_forward_hook(lambda m, args, out, name=name: seen.update({name: out}))
    model(x)
    counts = count_zeros(model, x, batch_size=12)
    for name, out in seen.items():
        channels_last = out.movedim(forges(model)[name].channel_dim, -1).flatten(0, -2)
        assert counts.zeros[name] == (channels_last == 0).sum(dim=0).tolist()
        assert counts.elements[name] == len(channels_last)
    assert counts.images_seen == 12


def test_folding_zeroes_the_chosen_columns_and_nothing_else():
    model = forged_model()
    before = state(model)
    counts = count_zeros(model, images(32))
    fold = fold_(model, counts, frequency=0.8)
    assert 0 < sum(map(len, fold.columns.values())) < sum(map(len, counts.zeros.values()))
    for key, tensor in model.state_dict().items():
        expected = before[key].clone()
        name = key.removesuffix(".weight")
        if name in counts.zeros:
            chosen = [share >= 0.8 for share in counts.frequency(name)]
            expected[:, chosen] = 0
        assert torch.equal(tensor, expected)


def test_counts_say_on_what_they_were_made():
    model = forged_model()
    counts = count_zeros(model, from_arrays(images(4), torch.zeros(4, dtype=torch.int64), name="mine"))
    assert (counts.data, counts.recipe) == ("mine", recipe_of(model).digest)


def test_a_model_with_a_fold_is_a_folded_copy_without_masks():
    model, x = forged_model(), images(4, seed=2)
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.8)
    expected = plain(model)(x)
    fold.undo_(model)
    before = state(model)
    assert torch.equal(with_fold(model, fold)(x), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        model.get_submodule(next(iter(fold.columns))).weight.mul_(2)
    with pytest.raises(RecipeError, match="the fold was made for other weights"):
        with_fold(model, fold)


def test_folding_equals_zeroing_the_inputs():
    model, x = forged_model(), images(4, seed=2)
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.8)
    remove_(model)
    by_hand = seeded(ResidualNet)
    for name, columns in fold.columns.items():

        def zero(layer, args, columns=columns):
            t = args[0].clone()
            t[:, columns] = 0
            return (t,)

        by_hand.get_submodule(name).register_forward_pre_hook(zero)
    torch.testing.assert_close(model(x), by_hand(x))


def test_undo_restores_the_weights_to_the_byte_also_from_the_file(tmp_path):
    model = forged_model()
    before = state(model)
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.8)
    fold.save(tmp_path / "fold.safetensors")
    loaded = load_fold(tmp_path / "fold.safetensors")
    assert (loaded.frequency, loaded.columns, loaded.counts) == (fold.frequency, fold.columns, fold.counts)
    loaded.undo_(model)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_undo_refuses_a_model_that_is_not_folded():
    model = forged_model()
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.8)
    fold.undo_(model)
    with pytest.raises(InputError, match="is not folded"):
        fold.undo_(model)


def test_grouped_convs_lose_only_the_rows_of_their_group():
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=3)
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            x = self.stem(x)
            return self.head((x + self.conv(x.relu())).mean(dim=(2, 3)))

    model = seeded(Grouped)
    forge_(model, images(8), ratio=0.1)
    counts = count_zeros(model, images(8))
    counts.zeros["conv"][:] = [0, 0, 0, counts.elements["conv"], 0, 0]  # channel 3 is the second of group 1
    before = model.conv.weight.clone()
    fold_(model, counts, frequency=1.0)
    changed = (model.conv.weight != before).flatten(2).any(dim=2)
    expected = torch.zeros(6, 2, dtype=torch.bool)
    expected[2:4, 1] = True
    assert torch.equal(changed, expected)


def test_a_frequency_that_nothing_reaches_changes_nothing():
    model = forged_model(ratio=2**-12)
    before = state(model)
    counts = count_zeros(model, images(8))
    counts.zeros.update({name: [0] * len(zeros) for name, zeros in counts.zeros.items()})
    assert fold_(model, counts, frequency=0.5).columns == {}
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("frequency", [0.0, 1.1, -1.0])
def test_a_wrong_frequency_is_named(frequency):
    model = forged_model()
    with pytest.raises(InputError, match="frequency must lie in"):
        fold_(model, count_zeros(model, images(8)), frequency=frequency)


def test_layers_without_columns_are_named_before_anything_is_written():
    model = seeded(TorchAttentionNet)
    insert_(model, find_sites(model, rules=["mlp_linears", "attention_projections"]), ratio=0.1)
    before = state(model)
    with pytest.raises(SiteError, match=r"'encoder\.self_attn' cannot be folded"):
        fold_(model, count_zeros(model, images(8)), frequency=0.1)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_an_old_weight_norm_is_named():
    model = forged_model()
    counts = count_zeros(model, images(8))
    nn.utils.weight_norm(model.block1.conv1)
    with pytest.raises(SiteError, match=r"'block1\.conv1' cannot be folded: its weight is computed"):
        fold_(model, counts, frequency=0.5)


def test_tied_weights_are_named():
    model = forged_model()
    model.block1.conv1.weight = model.block1.conv2.weight
    with pytest.raises(SiteError, match=r"it shares its weight with 'block1\.conv2'"):
        fold_(model, count_zeros(model, images(8)), frequency=0.5)


def test_counts_of_another_model_are_named():
    counts = count_zeros(forged_model(), images(8))
    wider = seeded(ResidualNet, width=12)
    before = state(wider)
    with pytest.raises(InputError, match=r"counts must be of this model: site 'block1\.conv1' takes 12 channels"):
        fold_(wider, counts, frequency=0.5)
    assert all(torch.equal(before[key], tensor) for key, tensor in wider.state_dict().items())


def test_a_parametrized_weight_is_named():
    model = forged_model()
    counts = count_zeros(model, images(8))
    nn.utils.parametrizations.weight_norm(model.block1.conv1)
    with pytest.raises(SiteError, match=r"'block1\.conv1' cannot be folded: its weight is computed"):
        fold_(model, counts, frequency=0.5)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x10" * 40])
def test_a_damaged_fold_is_named(tmp_path, content):
    path = tmp_path / "fold.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="is not a fold that this version reads"):
        load_fold(path)
    with pytest.raises(RecipeError, match="no file"):
        load_fold(tmp_path / "none")


def test_a_plain_view_of_a_folded_model_is_the_weight_variant():
    model, x = forged_model(), images(4)
    fold_(model, count_zeros(model, images(32)), frequency=0.8)
    assert not torch.equal(plain(model)(x), seeded(ResidualNet)(x))
