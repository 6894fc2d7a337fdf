import pytest
import torch
from torch import nn

from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.sites import find_sites
from tests.nets import (
    PlainNet,
    ResidualNet,
    ReusingNet,
    SqueezeExciteNet,
    TorchAttentionNet,
    Transformer,
    images,
    seeded,
)


def reasons(survey) -> dict[str, str]:
    return {layer.name: layer.reason for layer in survey.skipped}


@pytest.mark.parametrize("inplace", [False, True])
def test_residual_convs_are_sites_and_stem_head_and_shortcut_are_not(inplace):
    survey = find_sites(seeded(ResidualNet, inplace=inplace))
    assert survey.names == ["block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2"]
    assert reasons(survey) == {
        "stem": "the stem",
        "block2.shortcut": "projection on a shortcut: opt in with the rule shortcut_convs",
        "head": "the head",
    }


def test_a_site_knows_its_layer_and_shape():
    site = find_sites(seeded(ResidualNet))[2]
    assert (site.name, site.rule, site.layer) == ("block2.conv1", "residual_convs", "Conv2d")
    assert (site.in_features, site.input_shape, site.channel_dim) == (8, (1, 8, 32, 32), -3)


def test_mlp_linears_are_sites_and_attention_projections_are_not():
    survey = find_sites(seeded(Transformer))
    assert survey.names == ["blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "blocks.1.fc2"]
    assert survey[0].channel_dim == -1
    assert reasons(survey)["blocks.0.qkv"].startswith("query, key, value or output projection")


def test_opt_in_rules_add_shortcuts_and_attention():
    with_shortcut = find_sites(seeded(ResidualNet), rules=["residual_convs", "shortcut_convs"])
    attention = find_sites(seeded(Transformer), rules=["attention_projections"])
    assert "block2.shortcut" in with_shortcut.names
    assert attention.names == ["blocks.0.qkv", "blocks.0.proj", "blocks.1.qkv", "blocks.1.proj"]


def test_torch_attention_modules_are_sites_of_their_own():
    model = seeded(TorchAttentionNet)
    assert find_sites(model).names == ["encoder.linear1", "encoder.linear2"]
    assert find_sites(model, rules=["attention_projections"]).names == ["encoder.self_attn"]


def test_gates_are_left_out_unless_asked_for():
    model = seeded(SqueezeExciteNet)
    assert find_sites(model).names == ["conv1", "conv2"]
    assert find_sites(model, rules=["gate_layers"]).names == ["reduce", "expand"]


def test_depthwise_convs_are_left_out_unless_asked_for():
    class Inverted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.expand = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1)
            self.depthwise, self.project = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 4, 1)
            self.head = nn.Linear(4, 10)

        def forward(self, x):
            x = self.stem(x)
            return self.head((x + self.project(self.depthwise(self.expand(x)).relu())).mean(dim=(2, 3)))

    model = Inverted().eval()
    assert find_sites(model).names == ["expand", "project"]
    assert find_sites(model, rules=["depthwise_convs"]).names == ["depthwise"]


def test_a_plain_net_gets_all_layers_but_first_and_last_and_is_told_why():
    survey = find_sites(seeded(PlainNet))
    assert survey.names == ["layers.2", "layers.5"]
    assert survey.rules == ("sequential_layers",)
    assert survey.reason.startswith("no residual block was found")


def test_a_module_called_more_than_once_is_one_site():
    assert find_sites(seeded(ReusingNet)).names == ["conv"]


def test_a_layer_that_forward_never_calls_is_no_site():
    model = seeded(ResidualNet)
    model.block1.spare = nn.Conv2d(8, 8, 3)  # as the TRADES-style WideResNets carry a sub_block1
    survey = find_sites(model.eval())
    assert "block1.spare" not in survey.names
    assert reasons(survey)["block1.spare"].startswith("never called")


def test_two_heads_that_are_averaged_are_not_a_residual_block():
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.head_dist = seeded(Transformer), nn.Linear(10, 10), nn.Linear(10, 10)

        def forward(self, x):
            x = self.body(x)
            return (self.head(x) + self.head_dist(x)) / 2

    assert all(name.startswith("body.blocks") for name in find_sites(Distilled().eval()).names)


def test_two_networks_mixed_at_the_logits_keep_their_own_sites():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = seeded(ResidualNet), seeded(ResidualNet, seed=1)

        def forward(self, x):
            return 0.5 * self.left(x) + 0.5 * self.right(x)

    names = find_sites(Mixed().eval()).names
    assert len(names) == 8
    assert not any(name.endswith(("stem", "head", "shortcut")) for name in names)


def test_names_and_types_restrict_the_rules():
    model = seeded(ResidualNet)
    assert find_sites(model, include=["block1.*"]).names == ["block1.conv1", "block1.conv2"]
    assert find_sites(model, exclude=["*.conv2"]).names == ["block1.conv1", "block2.conv1"]
    assert find_sites(model, rules=["name:block?.conv[12]", "name:head"], types=(nn.Linear,)).names == ["head"]


def test_activations_can_be_sites_as_in_mean_sparse():
    survey = find_sites(seeded(PlainNet), rules=["activations"])
    assert survey.names == ["layers.1", "layers.3", "layers.6"]
    assert [site.channel_dim for site in survey] == [-3, -3, -1]


def test_finding_sites_leaves_no_hook_and_no_random_number_behind():
    model, state = seeded(ResidualNet), torch.get_rng_state()
    find_sites(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_sites_are_found_inside_wrappers():
    model = seeded(ResidualNet)
    assert find_sites(nn.DataParallel(model)).names == find_sites(model).names


def test_images_show_the_model_its_input_shape():
    class FixedSize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = seeded(ResidualNet, classes=3), nn.Linear(3 + 20 * 20, 3)

        def forward(self, x):
            return self.head(torch.cat([self.net(x), x.mean(dim=1).flatten(1)], dim=1))

    model = FixedSize().eval()
    with pytest.raises(SiteError, match=r"no image size fits this model; pass images=.* Tried \(3, 32, 32\)"):
        find_sites(model)
    assert len(find_sites(model, images(1, size=20))) == 4


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["residual_conv"], "unknown rule 'residual_conv'.*did you mean 'residual_convs'"),
        ("residual_convs", "rules must be a sequence"),
        (["plain_layers"], "'plain_layers' is now called 'sequential_layers'"),
        ([], "rules must not be empty"),
        (["shortcut_convs", "name:nothing*"], "no site was found by the rules.* A rule name:GLOB takes any layer"),
    ],
)
def test_wrong_rules_are_named(rules, message):
    with pytest.raises(SiteError, match=message):
        find_sites(seeded(Transformer), rules=rules)


def test_a_model_in_train_mode_is_refused():
    with pytest.raises(ModelError, match="must be in eval mode"):
        find_sites(seeded(ResidualNet).train())


def test_a_model_that_cannot_take_the_images_is_named():
    with pytest.raises(ModelError, match=r"fails on images of the shape \(3, 2, 2\)"):
        find_sites(seeded(PlainNet), images(1, size=2))


def test_empty_images_are_refused():
    with pytest.raises(InputError, match="must not be empty"):
        find_sites(seeded(PlainNet), images(0))


def test_a_model_without_layers_is_named():
    with pytest.raises(SiteError, match="no conv or linear layer"):
        find_sites(nn.Flatten().eval())


@pytest.mark.filterwarnings("ignore")  # torch.jit.script is deprecated; people still have scripted models
def test_a_scripted_model_is_refused():
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 3)).eval())
    with pytest.raises(SiteError, match="scripted model"):
        find_sites(scripted)
