import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import lipforge
from lipforge.errors import InputError, WeightsError
from lipforge.models import load_model, robustbench
from lipforge.models.robustbench import (
    Entry,
    _local_or_download,
    _parts,
    find_entry,
    import_robustbench,
    robustbench_entries,
)

pytestmark = pytest.mark.zoo

NAME = "Rice2020Overfitting"  # on CIFAR-100 a PreActResNet-18, RobustBench's smallest; its file lacks mu and sigma
SPEC = f"robustbench:cifar100/Linf/{NAME}"


@pytest.fixture(name="source", scope="module")
def _source():
    return load_model(SPEC, pretrained=False, seed=4)


@pytest.fixture(name="images")
def _images() -> torch.Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def published(model: torch.nn.Module) -> dict[str, object]:
    """The weights in the layout that RobustBench's files have."""
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ("mu", "sigma")}
    return {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 200}


def test_a_file_in_robustbenchs_own_place_gives_what_robustbench_itself_loads(tmp_path, source, images):
    place = tmp_path / "cifar100" / "Linf" / f"{NAME}.pt"
    place.parent.mkdir(parents=True)
    torch.save(published(source), place)
    model = load_model(SPEC, weights_dir=tmp_path)
    import_robustbench()
    from robustbench import load_model as peer_load_model

    peer = peer_load_model(NAME, model_dir=tmp_path, dataset="cifar100", threat_model="Linf")
    torch.testing.assert_close(model(images), source(images), rtol=0, atol=0)
    torch.testing.assert_close(peer(images), source(images), rtol=0, atol=0)


def test_a_file_directly_in_the_directory_is_found_too(tmp_path, source, images):
    torch.save(published(source), tmp_path / f"{NAME}.pt")
    torch.testing.assert_close(load_model(SPEC, weights_dir=tmp_path)(images), source(images), rtol=0, atol=0)


def test_a_named_file_wins_over_the_directory(tmp_path, source, images):
    torch.save(published(source), tmp_path / "mine.pt")
    (tmp_path / f"{NAME}.pt").write_text("<html>")
    model = load_model(SPEC, tmp_path / "mine.pt", weights_dir=tmp_path)
    torch.testing.assert_close(model(images), source(images), rtol=0, atol=0)


def test_an_error_page_in_the_directory_is_reported_and_not_downloaded_over(tmp_path):
    (tmp_path / f"{NAME}.pt").write_text("<html>quota exceeded</html>")
    with pytest.raises(WeightsError, match=rf"{NAME}\.pt is a web page"):
        load_model(SPEC, weights_dir=tmp_path)


def test_several_loads_at_once_download_a_file_once(tmp_path, monkeypatch):
    downloads = []

    def slowly(entry, part, target):
        downloads.append(target)
        time.sleep(0.3)
        target.write_bytes(b"weights")
        return target

    monkeypatch.setattr(robustbench, "_download", slowly)
    entry = find_entry(SPEC.removeprefix("robustbench:"))
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: _local_or_download(entry, 0, tmp_path), range(3)))
    assert downloads == [*found] == [tmp_path / "cifar100" / "Linf" / f"{NAME}.pt"]


def test_weights_of_another_entry_are_refused(tmp_path, source):
    torch.save(published(source), tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="does not fit the model"):
        load_model("robustbench:cifar10/L2/Rice2020Overfitting", tmp_path / "other.pt")


def test_random_weights_depend_on_the_seed_only(source, images):
    torch.testing.assert_close(load_model(SPEC, pretrained=False, seed=4)(images), source(images), rtol=0, atol=0)
    assert not torch.equal(load_model(SPEC, pretrained=False, seed=5)(images), source(images))


def test_the_data_set_decides_the_number_of_classes():
    with pytest.raises(InputError, match="has 100 classes, not 10"):
        load_model(SPEC, classes=10)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("cifar10/Linf/wu2020adversarial_extra", "cifar10/Linf/Wu2020Adversarial_extra"),
        ("cifar10/L2/Wu2020Adversarial_extra", "cifar10/Linf/Wu2020Adversarial_extra"),
        ("cifar10/Wang2023Better_WRN-70-16", "cifar10/Linf/Wang2023Better_WRN-70-16"),
    ],
)
def test_a_wrong_name_gets_the_nearest_ones(wrong, right):
    with pytest.raises(InputError, match=f"the form is dataset/threat/name.*{right}"):
        find_entry(wrong)


def test_the_table_has_all_lines_of_version_1_1_1():
    entries = robustbench_entries()
    assert sum(name.startswith("cifar10/Linf/") for name in entries) == 76
    assert len(entries) == 206


def test_an_entry_of_several_files_wants_a_directory(tmp_path):
    torch.save({}, tmp_path / "one.pt")
    with pytest.raises(InputError, match=r"made of 3 files, not 1: .*cifar10/Linf/Chen2020Adversarial\.pt_m0\.pt"):
        load_model("robustbench:cifar10/Linf/Chen2020Adversarial", tmp_path / "one.pt")


def test_each_file_of_an_ensemble_goes_into_its_own_network():
    networks = {"std_model": torch.nn.Linear(1, 1), "rob_model": torch.nn.Linear(1, 1)}
    mixed = Entry("cifar10", "Linf", "Bai2024MixedNUTS", None, ("first", "second"), "")
    assert _parts(torch.nn.ModuleDict(networks), mixed) == [{"": networks["std_model"]}, {"": networks["rob_model"]}]
    assert mixed.files(1)[0] == "cifar10/Linf/Bai2024MixedNUTS.pt_m1.pt"
    deck = torch.nn.ModuleDict({"models": torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(2)])})
    entry = Entry("cifar10", "Linf", "Chen2020Adversarial", None, ("first", "second"), "")
    assert [next(iter(part.values())) for part in _parts(deck, entry)] == list(deck.get_submodule("models").children())


def test_autoattack_is_lent_a_name_during_the_import_only():
    pytest.importorskip("pyautoattack")
    prepare = (
        "import sys; from lipforge.models.robustbench import import_robustbench; "
        "zoo = import_robustbench(); print(len(zoo.model_dicts), 'autoattack' in sys.modules)"
    )
    root = Path(lipforge.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", prepare], cwd=root, env={"PYTHONPATH": "src"}, capture_output=True)
    assert run.stdout.split() == [b"3", b"False"], run.stderr.decode()
