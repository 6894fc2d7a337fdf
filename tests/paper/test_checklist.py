import pytest

from lipforge.errors import InputError
from lipforge.paper import Published, check_table, load_paper


def row(attack, accuracy, *, ratio="2^-7", eps="8/255", table="t", model="net"):
    return Published(table, "data", model, "", ratio, attack, eps, accuracy)


def broken(*rows):
    """The rules that these numbers break."""
    return [finding.rule for finding in check_table(rows, source="test").findings]


@pytest.fixture(scope="module")
def paper():
    return check_table(load_paper(), source="paper")


@pytest.mark.parametrize(
    ("rule", "where", "eps", "evidence"),
    [
        ("one step", "CIFAR-10 TRADES 2^-8", "4/255", "FGSM 70.58 < PGD 72.81, by 2.23"),
        ("trend", "CIFAR-10 LTD 2^-7", "16/255", "PGD 28.57 is 6.24 outside 34.81 at 2^-8 and 49.95 at 2^-6"),
        ("trend", "CIFAR-10 TRADES 2^-7", "32/255", "FGSM 25.67 is 10.86 outside 36.53 at 2^-8 and 36.99 at 2^-6"),
        ("cw-pgd", "CIFAR-10 RST-AWP 2^-6", "8/255", "CW 80.92 is 7.20 above PGD 73.72"),
        ("conflict", "CIFAR-100 DefEAT base", "0", "clean 65.89 here, 64.32 in table 1b"),
    ],
)
def test_the_papers_breaks_are_named_with_their_numbers(paper, rule, where, eps, evidence):
    assert (rule, where, eps, evidence) in [(f.rule, f.where, f.eps, f.evidence) for f in paper.findings]


def test_few_of_the_papers_numbers_are_named(paper):
    """A checklist that fires everywhere says nothing; these are all of its findings by rule."""
    counts = {rule.name: (rule.checked, rule.broken) for rule in paper.rules}
    assert counts == {
        **{"one step": (240, 1), "radius": (240, 0), "trend": (220, 2), "cw-pgd": (30, 1), "aa-pgd": (30, 0)},
        **{"aa-cw": (40, 0), "white box": (40, 0), "cw-transfer": (30, 2), "cw-aa": (30, 4), "conflict": (56, 3)},
    }


def test_one_step_has_no_tolerance():
    assert broken(row("FGSM", 50.0), row("PGD", 50.01)) == ["one step"]
    assert broken(row("FGSM", 50.0), row("PGD", 50.0)) == []


def test_pgd_must_not_rise_with_the_radius_and_must_end_at_zero():
    assert broken(row("PGD", 40.0, eps="8/255"), row("PGD", 40.1, eps="16/255")) == ["radius"]
    assert broken(row("PGD", 40.0, eps="8/255"), row("PGD", 1.1, eps="64/255")) == ["radius"]
    assert broken(row("PGD", 40.0, eps="8/255"), row("PGD", 1.0, eps="64/255")) == []


def test_fgsm_may_rise_with_the_radius():
    steps = row("PGD", 0.5, eps="96/255")
    assert broken(row("FGSM", 18.8, eps="64/255"), row("FGSM", 19.0, eps="96/255"), steps) == []


def test_a_bend_that_the_next_radius_shares_is_a_trend_and_a_lonely_one_is_not():
    ratios = ("2^-8", "2^-7", "2^-6")
    lonely = [row("PGD", value, ratio=ratio) for ratio, value in zip(ratios, (50.0, 40.0, 60.0), strict=True)]
    beside = [row("PGD", v, ratio=r, eps="4/255") for r, v in zip(ratios, (70.0, 60.0, 80.0), strict=True)]
    assert broken(*lonely) == ["trend"]
    assert broken(*lonely, *beside) == []


@pytest.mark.parametrize(
    ("strong", "weak", "rule"),
    [("CW", "PGD", "cw-pgd"), ("AA", "PGD", "aa-pgd"), ("AA", "CW", "aa-cw"), ("AA", "transfer", "white box")],
)
def test_a_strong_attack_may_leave_two_points_more_and_no_more(strong, weak, rule):
    assert broken(row(strong, 52.0), row(weak, 50.0)) == []
    assert broken(row(strong, 52.01), row(weak, 50.0)) == [rule]


def test_the_base_models_own_gap_is_no_reason_for_doubt():
    base = [row("CW", 56.0, ratio="0"), row("AA", 50.0, ratio="0")]
    assert broken(*base, row("CW", 57.0), row("AA", 50.5)) == []
    assert broken(*base, row("CW", 62.0), row("AA", 50.5)) == ["cw-aa"]
    assert broken(*base, row("CW", 60.0), row("transfer", 51.0)) == []


def test_two_values_of_one_quantity_conflict():
    assert broken(row("AA", 50.0, table="1"), row("AA", 50.0, table="2")) == []
    assert broken(row("AA", 50.0, table="1"), row("AA", 50.1, table="2")) == ["conflict"]


@pytest.mark.parametrize("name", ["PGD-20", "pgd20", "PGD 20", "pgd_20", "PGD^20", "PGD-50-10", "PGD"])
def test_pgd_is_known_by_its_usual_names(name):
    assert broken(row("fgsm", 50.0), row(name, 50.01)) == ["one step"]


@pytest.mark.parametrize("name", ["AutoAttack", "auto-attack", "Auto Attack", "aa", "AA (standard)"])
def test_autoattack_is_known_by_its_usual_names(name):
    assert broken(row("C&W", 50.0), row(name, 52.01)) == ["aa-cw"]


def test_two_numbers_of_steps_are_two_quantities():
    """Neither a conflict nor one sweep: PGD with 10 steps may leave more at a larger radius than PGD with 100."""
    weak = [row("PGD-10", 46.0, eps="16/255"), row("PGD-10", 47.0, eps="8/255")]
    assert broken(*weak, row("PGD-100", 45.0, eps="8/255"), row("FGSM", 50.0)) == []
    assert broken(*weak, row("PGD-100", 45.0, eps="8/255"), row("FGSM", 46.0)) == ["one step"]


def test_numbers_that_no_rule_can_check_get_no_clean_bill():
    with pytest.raises(InputError, match=r"test has nothing that a rule could check.*found MIM, PGD-20"):
        check_table([row("MIM", 50.0), row("PGD-20", 40.0)], source="test")


def test_unknown_attacks_are_named_and_only_rules_with_numbers_count():
    found = check_table([row("MIM", 50.0), row("PGD-20", 40.0), row("FGSM", 45.0)], source="test")
    assert (found.unknown, found.applied) == (("MIM",), 1)


def test_no_numbers_are_an_error():
    with pytest.raises(InputError, match="must not be empty"):
        check_table([], source="test")
