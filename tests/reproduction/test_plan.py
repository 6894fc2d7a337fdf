import pytest

from lipforge.errors import InputError
from lipforge.paper import load_settings
from lipforge.reproduction.plan import Setting, by_model, cells, check_choices, idle_notes, published_rows

SETTINGS = load_settings()


def test_rows_are_chosen_by_model_or_by_model_and_ratio():
    assert {row.model for row in published_rows("4", "*awp")} == {"RST-AWP", "AWP"}
    assert [(row.ratio, row.attack) for row in published_rows("4", "CIFAR-10 LTD 2^-6")] == [
        ("2^-6", "clean"),
        ("2^-6", "AA"),
    ]
    assert len(published_rows("10")) == 240


def test_a_glob_that_matches_nothing_names_the_models():
    with pytest.raises(InputError, match=r"row must match a model of table 1b, got 'TRADES'; it has EffAug, DKLD"):
        published_rows("1b", "TRADES")


def test_an_unstated_ratio_is_measured_at_the_candidates():
    group = cells(published_rows("2a", "Wang*"), SETTINGS, (), ())
    assert list(group) == [Setting(0.0), Setting(2**-8), Setting(2**-7), Setting(2**-6)]
    assert list(cells(published_rows("2a", "Wang*"), SETTINGS, (0.5,), ())) == [Setting(0.0), Setting(0.5)]


def test_a_stated_ratio_is_not_replaced():
    assert list(cells(published_rows("1a", "LTD"), SETTINGS, (0.5,), ())) == [Setting(0.0), Setting(2**-7)]


def test_frequencies_are_for_the_weight_variant_alone():
    group = cells(published_rows("8"), SETTINGS, (2**-7,), (0.9, 0.95))
    assert [str(setting) for setting in group] == ["base", "2^-7", "2^-7 weight at 0.9", "2^-7 weight at 0.95"]


def test_models_of_the_same_name_on_two_data_sets_are_apart():
    rows = [*published_rows("1a", "AWP"), *published_rows("1b", "AWP")]
    assert list(by_model(rows)) == [("CIFAR-10", "AWP"), ("CIFAR-100", "AWP")]


def test_choices_without_effect_are_noted():
    stated, open_ratio = ([cells(published_rows(table), SETTINGS, (0.5,), (0.9,))] for table in ("1a", "8"))
    assert len(idle_notes(stated, (0.5,), (0.9,))) == 2
    assert idle_notes(open_ratio, (0.5,), (0.9,)) == []
    assert idle_notes(stated, (), ()) == []


@pytest.mark.parametrize(
    ("ratios", "frequencies", "complaint"),
    [
        ([0.5, 0.0], [], r"ratio must lie in \(0, 1\], got 0$"),
        ([1.5], [], r"ratio must lie in \(0, 1\], got 1.5"),
        ([], [-0.1], r"frequency must lie in \(0, 1\], got -0.1"),
        ([0.5, 0.5], [], r"ratio must list different numbers, got 0.5, 0.5"),
    ],
)
def test_choices_that_cannot_be_measured_are_refused(ratios, frequencies, complaint):
    with pytest.raises(InputError, match=complaint):
        check_choices(ratios, frequencies)
