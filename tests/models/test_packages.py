import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lipforge
from lipforge.errors import InputError, MissingExtraError, WeightsError
from lipforge.models import Normalize, load_model
from lipforge.models.packages import download, import_package, layout_filter
from lipforge.models.robustbench import import_robustbench

SMALL_TIMM = "deit_tiny_patch16_224"
IMAGENET_MEAN = [0.485, 0.456, 0.406]


@pytest.fixture(name="image")
def _image() -> torch.Tensor:
    return torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.mark.zoo
@pytest.mark.parametrize("spec", [f"timm:{SMALL_TIMM}", "torchvision:resnet18"])
def test_the_model_takes_raw_images_and_hands_normalised_ones_to_the_network(spec, image):
    model = load_model(spec, pretrained=False)
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0], Normalize)
    torch.testing.assert_close(model[0].mean.flatten(), torch.tensor(IMAGENET_MEAN))
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    expected = model[1]((image - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / std)
    torch.testing.assert_close(model(image), expected)


@pytest.mark.zoo
def test_a_model_with_other_normalisation_gets_its_own():
    # timm's augreg vision transformers were trained with 0.5 / 0.5.
    model = load_model("timm:vit_tiny_patch16_224", pretrained=False)
    assert model.get_buffer("normalize.mean").flatten().tolist() == [0.5, 0.5, 0.5]


@pytest.mark.zoo
@pytest.mark.parametrize("spec", [f"timm:{SMALL_TIMM}", "torchvision:resnet18"])
def test_classes_set_the_head_of_a_model_without_weights(spec, image):
    assert load_model(spec, pretrained=False, classes=7)(image).shape == (1, 7)


@pytest.mark.zoo
@pytest.mark.parametrize("spec", [f"timm:{SMALL_TIMM}", "torchvision:resnet18"])
def test_pretrained_weights_refuse_another_number_of_classes(spec):
    with pytest.raises(WeightsError, match="have 1000 classes, not 7"):
        load_model(spec, classes=7)


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("spec", "file"),
    [
        (f"timm:{SMALL_TIMM}", f"{SMALL_TIMM}.pth"),
        ("torchvision:resnet18", "resnet18.pt"),
        ("torchvision:resnet18", "resnet18-f37072fd.pth"),  # the name that torchvision's download has
    ],
)
def test_a_file_in_the_weights_directory_is_used(tmp_path, spec, file, image):
    source = load_model(spec, pretrained=False, seed=5)
    torch.save({"state_dict": source[1].state_dict()}, tmp_path / file)  # type: ignore[index]  # a Sequential
    torch.testing.assert_close(load_model(spec, weights_dir=tmp_path)(image), source(image), rtol=0, atol=0)


@pytest.mark.zoo
def test_an_older_layout_is_translated_by_timm_itself(tmp_path):
    """The authors' Swin files name the downsampling one stage earlier and the head `head.weight`."""
    spec = "timm:swin_tiny_patch4_window7_224"
    source = load_model(spec, pretrained=False, seed=5)
    old = {}
    for name, tensor in source.get_submodule("model").state_dict().items():
        for stage in (1, 2, 3):
            name = name.replace(f"layers.{stage}.downsample", f"layers.{stage - 1}.downsample")
        old[name.replace("head.fc.", "head.")] = tensor
    torch.save({"model": old}, tmp_path / "old.pth")
    loaded = load_model(spec, tmp_path / "old.pth").state_dict()
    torch.testing.assert_close(loaded, source.state_dict(), rtol=0, atol=0)


@pytest.mark.zoo
def test_unknown_names_get_the_nearest_ones():
    with pytest.raises(InputError, match="timm has no model 'swin_larg_patch4_window7_224'; did you mean 'swin_large"):
        load_model("timm:swin_larg_patch4_window7_224")
    with pytest.raises(InputError, match="torchvision has no classifier 'resnet51'; did you mean 'resnet50'"):
        load_model("torchvision:resnet51")


@pytest.mark.zoo
def test_models_that_another_package_registered_with_timm_are_not_normalised_twice():
    import_robustbench()
    with pytest.raises(InputError, match="timm has no model 'debenedetti2022light_xcit_s12_cifar10_linf'"):
        load_model("timm:debenedetti2022light_xcit_s12_cifar10_linf", pretrained=False)


@pytest.mark.zoo
def test_a_timm_model_without_pretrained_weights_says_so():
    with pytest.raises(WeightsError, match="has no pretrained weights"):
        load_model("timm:vit_small_patch16_36x1_224")


@pytest.mark.zoo
def test_timm_could_download_its_weights_with_the_installed_hub():
    assert import_package("timm.models._hub").has_hf_hub()


@pytest.mark.zoo
def test_a_hub_that_timm_cannot_use_is_named_as_the_cause(monkeypatch):
    monkeypatch.setattr(import_package("timm.models._hub"), "_has_hf_hub", False)
    with pytest.raises(WeightsError, match=r"installed huggingface_hub \(\d.*'huggingface_hub<2'"):
        load_model(f"timm:{SMALL_TIMM}")


@pytest.mark.parametrize("package", ["timm", "torchvision", "robustbench"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lipforge\[zoo\]'"):
        import_package(package)


def run_fresh(code: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process that finds packages in `folders` first."""
    path = ":".join(map(str, [*folders, Path(lipforge.__file__).parents[1]]))
    return subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)


def test_a_torchvision_that_still_fails_is_named_as_the_cause(tmp_path):
    """A fake raises what the real mismatch raises: the installed pair may well be a match."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    run = run_fresh("from lipforge import load_model; load_model('torchvision:resnet18', pretrained=False)", tmp_path)
    assert "ModelError: torchvision cannot be imported: the installed torchvision was built for another" in run.stderr


@pytest.mark.zoo
@pytest.mark.parametrize("before", ["", "import contextlib\nwith contextlib.suppress(Exception): import torchvision"])
def test_timm_and_torchvision_import_in_a_fresh_process_whatever_torch_was_built_for(before):
    names = "for name in ('timm', 'torchvision', 'torchvision'): print(import_package(name).__name__)"
    run = run_fresh(f"{before}\nfrom lipforge.models.packages import import_package\n{names}")
    assert run.stdout.split() == ["timm", "torchvision", "torchvision"], run.stderr


# Like torchvision on a CPU build of torch: its import needs operators that it may or may not have.
FAKE = """
import torch
{defined}
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{{name}}", lambda dets, scores, iou_threshold: scores)
"""
OPERATORS = """
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl(name, lambda dets, scores, iou_threshold: scores + 1, "CPU")
"""
ASK = """
import torch
from lipforge.models import packages
packages.import_package("torchvision")
print(len(packages._declared), end=" ")
try:
    print(torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5).item())
except NotImplementedError:
    print("declared only")
"""


@pytest.mark.parametrize(("defined", "answer"), [(OPERATORS, "0 1.0\n"), ("", "1 declared only\n")])
def test_missing_operators_are_declared_and_working_ones_left_alone(tmp_path, defined, answer):
    (tmp_path / "torchvision.py").write_text(FAKE.format(defined=defined))
    run = run_fresh(ASK, tmp_path)
    assert run.stdout == answer, run.stderr


def test_a_failed_download_names_the_address_and_leaves_nothing(tmp_path):
    with pytest.raises(WeightsError, match=r"could not be downloaded .* get file:///nowhere/weights\.pt"):
        download("file:///nowhere/weights.pt", tmp_path / "cache" / "weights.pt")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_is_checked_against_the_hash_in_its_name(tmp_path):
    (tmp_path / "weights-00000000.pt").write_bytes(b"other bytes")
    with pytest.raises(WeightsError, match="hash"):
        download((tmp_path / "weights-00000000.pt").as_uri(), tmp_path / "cache" / "weights-00000000.pt")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_network_whose_package_has_no_translation_gets_none():
    assert layout_filter(nn.Linear(1, 1)) is None


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_vit_are_refused_rather_than_resampled(tmp_path):
    other = import_package("timm").create_model("vit_tiny_patch16_384", pretrained=False)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="pos_embed"):
        load_model("timm:vit_tiny_patch16_224", tmp_path / "other.pt")
