import json
import sys

import onnx
import pytest
import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.deployment import run as exporting
from lipforge.errors import ExportError, InputError, MissingExtraError, ModelError
from lipforge.forge import parse_mask
from lipforge.models.packages import import_package
from lipforge.results import from_record, record
from tests.nets import PlainNet, ResidualNet, Transformer, images, seeded

MASKS = ["step", "piecewise:d=0.5", "smooth", "mean-centred"]


def small(mask: str = "step", *, per_channel: bool = False) -> tuple[nn.Module, Tensor]:
    model, x = seeded(ResidualNet, width=4), images(6)
    lf.forge_(model, x, ratio=2**-4, mask=parse_mask(mask), per_channel=per_channel)
    return model, x


def with_all_parts() -> tuple[nn.Module, Tensor]:
    """Masks, an affine part, another head and TTA at once."""
    model, x = small("smooth")
    forge = next(iter(lf.forges(model).values()))
    forge.set_affine(torch.linspace(0.5, 1.5, forge.channels), torch.linspace(-0.1, 0.1, forge.channels))
    lf.set_head_(model, lf.Head("head", torch.randn(10, 8, generator=torch.Generator().manual_seed(0)), torch.ones(10)))
    lf.set_tta_(model, "mirror x shifts")
    return model, x


@pytest.mark.parametrize("kind", ["onnx", "pt2", "safetensors"])
def test_a_file_gives_the_logits_of_the_model_for_any_batch_size(shipped, kind):
    loaded = lf.load_exported(shipped.path(kind), shipped.model if kind == "safetensors" else None)
    for count in (1, 3, 8):
        with torch.no_grad():
            torch.testing.assert_close(loaded(shipped.x[:count]), shipped.model(shipped.x[:count]), atol=1e-5, rtol=0)
    assert (shipped.results[kind].parity.count, shipped.results[kind].parity.equal) == (8, 8)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per layer", "per channel"])
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_survives_torch_export(tmp_path, mask, per_channel):
    model, x = small(mask, per_channel=per_channel)
    done = lf.export(model, tmp_path / "m.pt2", images=x)
    assert done.parity.largest == 0
    assert (done.sites, done.mask) == (4, str(parse_mask(mask)))


@pytest.mark.parametrize(("mask", "per_channel"), [("step", True), ("piecewise:d=0.5", False), ("mean-centred", False)])
def test_a_mask_survives_onnx(tmp_path, mask, per_channel):
    model, x = small(mask, per_channel=per_channel)
    done = lf.export(model, tmp_path / "m.onnx", images=x)
    assert done.parity.equal == done.parity.count == 6
    assert done.parity.largest < 1e-5
    assert done.masks_fused == 0


@pytest.mark.parametrize("kind", ["onnx", "pt2", "safetensors"])
def test_affine_part_head_and_tta_are_in_the_file(tmp_path, kind):
    model, x = with_all_parts()
    done = lf.export(model, tmp_path / f"m.{kind}", images=x)
    loaded = lf.load_exported(tmp_path / f"m.{kind}", model)
    with torch.no_grad():
        assert (lf.plain(model)(x) - model(x)).abs().max() > 0.1
        torch.testing.assert_close(loaded(x), model(x), atol=1e-5, rtol=0)
    assert (done.tta, done.recipe) == ("mirror x shifts", lf.recipe_of(model).digest)


def test_the_live_model_is_untouched(shipped):
    model, x = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(x)
    lf.export(model, shipped.folder / "again.pt2", images=x)
    assert torch.equal(model(x), logits)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["onnx", "pt2", "safetensors"])
def test_a_file_says_what_it_is_and_nothing_of_this_machine(shipped, kind):
    about = lf.load_exported(shipped.path(kind), shipped.model).metadata
    recipe = lf.recipe_of(shipped.model)
    assert about["recipe_digest"] == recipe.digest == shipped.results[kind].recipe
    assert (about["mask"], about["model"], about["checked"]) == ("Step()", "tiny", "true")
    kept = json.loads(about["recipe"])
    assert {name: site["bound"] for name, site in kept["sites"].items()} == recipe.bounds
    assert {site["ratio"] for site in kept["sites"].values()} == {2**-4}
    assert json.loads(about["check"])["equal"] == 8
    content = shipped.path(kind).read_bytes()
    assert b".py" not in content
    assert b"lipforge.models" not in content


def test_an_onnx_file_has_named_ends_a_free_batch_and_the_chosen_opset(tmp_path):
    model, x = small()
    done = lf.export(model, tmp_path / "m.onnx", images=x, opset=18)
    proto = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(proto, full_check=True)
    ends = [
        (end.name, end.type.tensor_type.shape.dim[0].dim_param) for end in (*proto.graph.input, *proto.graph.output)
    ]
    assert ends == [("images", "batch"), ("logits", "batch")]
    assert [(used.domain, used.version) for used in proto.opset_import] == [("", 18)]
    assert [node.op_type for node in proto.graph.node].count("ThresholdedRelu") == done.masks_fused == 4
    assert not {"Abs", "LessOrEqual", "Where"} & {node.op_type for node in proto.graph.node}


def test_a_model_that_was_not_changed_is_exported_as_it_is(tmp_path):
    model, x = seeded(PlainNet), images(4)
    done = lf.export(model, tmp_path / "m.pt2", images=x)
    assert (done.recipe, done.mask, done.sites, done.parity.largest) == (None, None, 0, 0.0)


def test_a_result_comes_back_from_json(shipped):
    result = shipped.results["onnx"]
    assert from_record(json.loads(json.dumps(record(result))), "x") == result
    assert result.size == shipped.path("onnx").stat().st_size
    assert (result.opset, shipped.results["pt2"].opset) == (20, None)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3))
        return self.head(pooled if pooled.sum() > 0 else -pooled)


def test_a_model_that_branches_on_values_is_an_error_that_names_the_cause_and_writes_nothing(tmp_path):
    with pytest.raises(ModelError, match=r"torch.export cannot turn the model into a graph .*data-dependent"):
        lf.export(Branching().eval(), tmp_path / "m.pt2", images=images(2))
    assert list(tmp_path.iterdir()) == []
    assert lf.export(Branching().eval(), tmp_path / "m.safetensors", images=images(2)).parity.equal == 2


class Counting(nn.Module):
    """It asks len() for the batch size, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.ones(1, 3)), nn.Linear(3, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.token.expand(len(images), -1) + images.mean(dim=(2, 3)))


def test_a_model_that_asks_for_the_length_of_the_batch_keeps_it_free(tmp_path):
    assert lf.export(Counting().eval(), tmp_path / "m.pt2", images=images(5)).parity.equal == 5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("m.h5", {}, "format must be one of onnx, pt2, safetensors, .* got 'h5'"),
        ("m.onnx", {"format": "pt2"}, r"the format pt2 must end in .pt2, got 'm.onnx'"),
        ("m.onnx", {"opset": 17}, r"opset must be a whole number in 18\.\.23, got 17"),
        ("m.onnx", {"opset": 99}, r"opset must be a whole number in 18\.\.23, got 99"),
        ("m.pt2", {"opset": 20}, "opset is about ONNX, not about pt2"),
        ("m.pt2", {"images": torch.zeros(0, 3, 32, 32)}, "images must not be empty"),
        ("m.pt2", {"images": torch.full((2, 3, 32, 32), 9.0)}, r"images must lie in \[0, 1\]"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(tmp_path, name, settings, message):
    with pytest.raises(InputError, match=message):
        lf.export(seeded(PlainNet), tmp_path / name, **{"images": images(2), **settings})
    assert list(tmp_path.iterdir()) == []


def test_what_differs_is_not_written_unless_it_is_not_checked_and_then_says_so(tmp_path, monkeypatch):
    model, x = small()
    wrong, _ = small("smooth")
    real = exporting.fused_program
    monkeypatch.setattr(exporting, "fused_program", lambda view, *args, **given: real(lf.forged(wrong), *args, **given))
    with pytest.raises(ExportError, match=r"differs from the model by .* nothing was written"):
        lf.export(model, tmp_path / "m.pt2", images=x)
    assert list(tmp_path.iterdir()) == []
    done = lf.export(model, tmp_path / "m.pt2", images=x, check=False)
    assert done.parity is None
    about = lf.load_exported(tmp_path / "m.pt2").metadata
    assert (about["checked"], "check" in about) == ("false", False)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_packages_of_onnx_the_error_names_the_extra_and_nothing_is_written(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install 'lipforge\[onnx\]'"):
        lf.export(seeded(PlainNet), tmp_path / "m.onnx", images=images(2))
    assert list(tmp_path.iterdir()) == []


def test_more_than_2_gb_is_an_error_for_onnx(tmp_path, monkeypatch):
    monkeypatch.setattr("lipforge.deployment.formats.LARGEST_ONNX", 100)
    with pytest.raises(ExportError, match=r"an ONNX file holds at most 2 GB, .* use format='pt2'"):
        lf.export(seeded(PlainNet), tmp_path / "m.onnx", images=images(2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar10-resnet", "cifar10-vit"])
def test_a_bundled_model_is_the_same_in_onnxruntime(tmp_path, name):
    model, data = lf.load_model(name), lf.load_data("cifar10-sample", limit=40)
    lf.forge_(model, data, ratio=2**-6)
    done = lf.export(model, tmp_path / "m.onnx", images=data)
    assert done.parity.equal == done.parity.count == 40
    assert done.parity.largest <= done.parity.tolerance == 1e-4
    assert done.masks_fused == (16 if name == "cifar10-resnet" else 0)


def test_a_transformer_of_the_users_own_survives(tmp_path):
    model, x = seeded(Transformer), images(4)
    lf.forge_(model, x, ratio=2**-4)
    assert lf.export(model, tmp_path / "m.pt2", images=x).parity.largest == 0


@pytest.mark.zoo
def test_a_timm_model_survives_onnx(tmp_path):
    import_package("timm")
    model, x = lf.load_model("timm:resnet10t", pretrained=False, classes=10), images(3, size=64)
    lf.forge_(model, x, ratio=2**-5)
    done = lf.export(model, tmp_path / "m.onnx", images=x)
    assert done.parity.equal == 3
    assert done.masks_fused > 0


@pytest.mark.zoo
def test_a_model_of_transformers_which_returns_an_object_survives_onnx(tmp_path):
    import_package("torchvision")
    transformers = pytest.importorskip("transformers")
    settings = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = transformers.ViTForImageClassification(settings).eval(), images(3)
    done = lf.export(model, tmp_path / "m.onnx", images=x)
    assert done.parity.equal == 3
    assert lf.load_exported(tmp_path / "m.onnx")(x).shape == (3, 2)


def test_a_threshold_of_the_users_own_keeps_its_value_in_onnx(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Threshold(0.1, -3.0), nn.Linear(6, 3)).eval()
    x = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    assert lf.export(net, tmp_path / "m.onnx", images=x).parity.equal == 4


def test_half_precision_is_refused_with_the_way_out(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval().half()
    with pytest.raises(InputError, match=r"'1.weight' is torch.float16; call model.float\(\) first"):
        lf.export(net, tmp_path / "m.pt2", images=torch.rand(2, 3, 2, 2))
