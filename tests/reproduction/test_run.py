from dataclasses import replace

import numpy as np
import pytest
import torch

from lipforge.data import load_data
from lipforge.errors import InputError, ModelError
from lipforge.models import load_model
from lipforge.models.packages import import_package
from lipforge.paper import load_settings
from lipforge.paper.settings import PaperData
from lipforge.reproduction import Source, estimate_table, reproduce
from lipforge.reproduction.plan import cells, published_rows
from lipforge.reproduction.run import _attacks
from lipforge.results import from_record, record
from lipforge.runs import RunDir
from tests.reproduction.made import source
from tests.schemas import problems


def test_every_number_of_a_table_stands_beside_its_measurement(tmp_path):
    found = reproduce("1a", source(), row="RST-AWP", run=RunDir.open(tmp_path), show_progress=False)
    what = [(row.name, row.attack, row.published) for row in found.rows]
    assert what == [("base", "clean", 0.8825), ("base", "AA", 0.6004), ("2^-7", "clean", 0.895), ("2^-7", "AA", 0.6276)]
    for row in found.rows:
        assert row.measured is not None
        assert row.interval is not None
        assert row.interval[0] <= row.measured <= row.interval[1]
        assert row.inside == (row.interval[0] <= row.published <= row.interval[1])
        assert (row.count, row.spec) == (6, "cifar10-resnet")
    values = record(found)
    assert problems(values, "reproduction") == []
    assert from_record(values, "x") == found == RunDir.open(tmp_path).read_result("reproduction__table-1a__RST-AWP")


def test_tables_share_what_they_have_in_common(tmp_path):
    run = RunDir.open(tmp_path)
    for table in ("1a", "4", "9a"):
        reproduce(table, source(), row="RST-AWP", run=run, show_progress=False)
    tasks = sorted(path.name for path in (tmp_path / "shards").iterdir())
    assert len([name for name in tasks if "base" in name]) == 1
    assert len(tasks) == 4  # base, 2^-8, 2^-7, 2^-6
    before = run.shards()
    reproduce("4", source(), row="RST-AWP", run=run, show_progress=False)
    assert run.shards() == before


def test_missing_weights_are_named_and_the_rest_is_done():
    found = reproduce("1a", source({"RST-AWP": "wrn-28-10"}), row="*AWP", show_progress=False)
    missing = {row.model for row in found.missing}
    assert missing == {"RST-AWP"}
    assert all("without weights of its own" in row.note for row in found.missing)
    assert [row.model for row in found.rows] == ["RST-AWP"] * 4 + ["AWP"] * 4


def test_notes_say_where_the_paper_used_another_base_or_more_images():
    found = reproduce("3", replace(source(), calibrate=8), row="*2^-7", show_progress=False)
    calibration, base = found.notes
    assert calibration == "calibrated on 8 images, not on the paper's number"
    assert "85.34 / 52.86" in base


def test_table_6_is_calibrated_on_its_own_numbers_and_notes_no_other():
    stand_in = Source(stand_in=True, limit=1, calibrate=8)
    assert len(reproduce("6", stand_in, ratios=(2**-7,), show_progress=False).notes) == 1  # that they are stand-ins
    assert len(reproduce("8", stand_in, ratios=(2**-7,), show_progress=False).notes) == 2


def test_too_few_training_images_are_missing_for_their_rows_alone():
    small = source(limit=1)
    found = reproduce("6", small, row="Liu*", ratios=(2**-7,), show_progress=False)
    assert {row.variant for row in found.missing} == {"10000 images", "20000 images"}
    assert {row.variant for row in found.rows if row.measured is not None} == {"", "5000 images"}
    assert "calibration takes 10000 images" in found.missing[0].note


def test_all_bases_are_checked_before_the_first_attack(tmp_path, monkeypatch):
    monkeypatch.setattr("lipforge.reproduction.subject.published_clean", lambda paper: [])
    wrong = source(limit=20)
    models = [replace(one, clean=1.0) if one.model == "AWP" else one for one in wrong.settings.models]
    wrong = replace(wrong, settings=replace(wrong.settings, models=tuple(models)))
    with pytest.raises(ModelError, match="CIFAR-10 AWP may be the wrong checkpoint"):
        reproduce("1a", wrong, row="*AWP", run=RunDir.open(tmp_path), show_progress=False)
    assert RunDir.open(tmp_path).shards() == 0


def test_a_ratio_of_zero_is_refused_before_any_attack(tmp_path):
    with pytest.raises(InputError, match=r"ratio must lie in \(0, 1\], got 0"):
        reproduce("2a", source(), ratios=(2**-7, 0.0), run=RunDir.open(tmp_path), show_progress=False)
    with pytest.raises(InputError, match=r"frequency must lie in \(0, 1\], got 2"):
        estimate_table("8", source(), frequencies=(2.0,), show_progress=False)
    assert not list(tmp_path.glob("shards/*"))


def test_a_robust_image_stays_clean_only_if_asked_for(tmp_path):
    run = RunDir.open(tmp_path)
    ours = reproduce("9a", source(), row="RST-AWP", run=run, show_progress=False)
    theirs = reproduce("9a", source(), row="RST-AWP", leave_robust_clean=True, run=run, show_progress=False)
    assert (ours.notes, len(theirs.notes)) == ((), 1)
    assert {ours.name, theirs.name} <= set(run.results())
    assert ours.name != theirs.name
    assert ours.rows[0] == theirs.rows[0]  # the base under its own attack
    for one, two in zip(ours.rows, theirs.rows, strict=True):
        assert one.measured is not None
        assert two.measured is not None
        assert one.measured <= two.measured


def test_a_table_in_16_bit_stands_beside_the_one_in_float32(tmp_path):
    run, small = RunDir.open(tmp_path), source({"RST-AWP": "cifar10-vit"}, limit=2)
    reproduce("9a", small, row="RST-AWP", run=run, show_progress=False)
    found = reproduce("9a", replace(small, dtype="bfloat16"), row="RST-AWP", run=run, show_progress=False)
    assert (found.dtype, found.name) == ("bfloat16", "reproduction__table-9a__RST-AWP__bfloat16")
    assert "the models were measured in bfloat16" in found.notes
    assert not found.missing
    bases = [run.read_result(name) for name in run.results() if "base" in name]
    assert sorted(base.dtype for base in bases) == ["bfloat16", "float32"]
    assert len(list((tmp_path / "recipes").iterdir())) == 1  # calibrated once, in float32


def test_leaving_robust_images_clean_is_noted_where_nothing_is_transferred():
    found = reproduce("1a", source(limit=1), row="AWP", leave_robust_clean=True, show_progress=False)
    assert any("leave_robust_clean has no effect" in note for note in found.notes)


def test_every_frequency_of_the_weight_variant_has_its_rows():
    found = reproduce("8", source(), ratios=(2**-6,), frequencies=(0.5, 1.0), show_progress=False)
    weight = [row for row in found.rows if row.variant == "weight"]
    assert [row.note.split()[-1] for row in weight if row.attack == "AA"] == ["0.5", "1"]
    assert {(row.stated, row.ratio) for row in weight} == {("unstated", "2^-6")}


def test_calibration_sizes_come_from_one_pass(tmp_path):
    small = source()
    variants = {name: replace(one, calibrate=8 + at) for at, (name, one) in enumerate(small.settings.variants.items())}
    small = replace(small, settings=replace(small.settings, variants=variants))
    found = reproduce("6", small, row="Liu*", ratios=(2**-7,), run=RunDir.open(tmp_path), show_progress=False)
    assert not found.missing
    assert len(list((tmp_path / "recipes").iterdir())) == 3


def test_a_figure_is_no_table():
    with pytest.raises(InputError, match="certified is a figure: reproduce_figure measures it"):
        reproduce("certified", source())


def test_the_estimate_counts_every_model_of_a_table():
    found, lacking = estimate_table("4", source(), row="RST-AWP", probe=2, show_progress=False)
    assert lacking == []
    assert [(one.attack, one.count) for one in found] == [("pgd:steps=2", 4 * 6)]


def test_a_transfer_table_attacks_the_base_alone():
    settings = load_settings()
    transfer, both = (_attacks(cells(published_rows(table, "LTD"), settings, (), ())) for table in ("9a", "10"))
    assert transfer == {("AA", "8/255"): 1}
    assert both["PGD", "8/255"] == 3
    assert len(both) == 16


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One run for all tables: they share their stand-ins, so most of the work is done once."""
    return RunDir.open(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("table", load_settings().tables)
def test_every_table_runs_on_stand_ins(table, shared):
    count = len(published_rows(table))
    row = "* AWP 2^-7" if count > 100 else "AWP" if count > 10 else "*"  # all CIFAR models have the same stand-in
    found = reproduce(table, Source(stand_in=True, limit=2), row=row, run=shared, show_progress=False)
    assert found.rows
    assert not found.missing
    assert {row.inside for row in found.rows} == {None}
    assert "the numbers mean nothing" in found.notes[0]


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")  # the packages warn about each other
def test_rst_awp_in_robustbench_layout_goes_through_standard_autoattack(tmp_path):
    """A WRN-28-10 with random weights. Of two labels one is its own, by so small a margin that the first attack breaks
    it; a robust image would cost thousands of passes."""
    import_package("timm")
    paper = load_settings()
    spec = paper.model("CIFAR-10", "RST-AWP").spec
    model = load_model(spec, pretrained=False, seed=0)
    weights = tmp_path / f"{spec.removeprefix('robustbench:')}.pt"
    weights.parent.mkdir(parents=True)
    torch.save({"state_dict": model.state_dict()}, weights)
    images, _ = load_data("cifar10-sample:test").batch([12, 0])
    with torch.no_grad():
        labels = (model(images).argmax(1) + torch.tensor([0, 1])) % 10
    np.savez(tmp_path / "two.npz", images=images.numpy(), labels=labels.numpy())
    data = {"CIFAR-10": PaperData(f"npz:{tmp_path / 'two.npz'}", "cifar10-sample:train", calibrate=2)}
    here = Source(weights_dir=str(tmp_path), settings=replace(paper, datasets={**paper.datasets, **data}))
    run = RunDir.open(tmp_path / "run")
    found = reproduce("1a", here, row="RST-AWP", force=True, run=run, show_progress=False)
    assert {row.spec for row in found.rows} == {spec}
    assert [row.measured for row in found.rows][:2] == [0.5, 0.0]
    assert not found.missing
    (base,) = [run.read_result(name) for name in run.results() if "base" in name]
    assert base.attack == "autoattack"
    assert base.outcome[0].startswith("apgd")
    assert base.outcome[1] == "misclassified"
