from lipforge.attacks import PGD
from lipforge.audit import Plan
from lipforge.audit.gather import gather

PLAN = Plan(plain=PGD(), adaptive=PGD(), longer=PGD())
ABOUT = {
    "model": "m",
    "data": "d",
    "threat": "linf 8/255",
    "norm": "linf",
    "eps": 8 / 255,
    "seed": 0,
    "count": 4,
    "plain_attack": "pgd",
    "margin": 0.01,
}
ZERO = "images had a gradient of exactly 0"


def sheet(notes, unpursued):
    return {
        "outcome": ["robust", "mine"],
        "notes": notes,
        "square": 0,
        "forwards": 9,
        "backwards": [40, 30],
        "gradients": {"plain": 20, "mine": 50},
        "given_up": {"plain": 1, "mine": unpursued},
        "unpursued": unpursued,
    }


def report():
    first, second = (
        {
            "base": sheet([["mine", "odd"]], 0),
            "candidate": sheet([["plain", f"{number} of 2 {ZERO}"], ["mine", f"1 of 2 {ZERO}"]], 1),
            "same": False,
            "transfer": {"base": [True, True], "candidate": [True, True]},
            "precision": {"decide": 0, "flips": 0, "broken": 0},
            "seconds": 1.0,
        }
        for number in (1, 2)
    )
    return gather([first, second], None, ABOUT, PLAN, ["mine"], [], {"base": "b", "candidate": "c"})


def test_notes_of_every_stage_are_kept_and_added_up_over_shards():
    assert report().notes == (
        "base, mine: odd",
        f"candidate, plain: 3 of 4 {ZERO}",
        f"candidate, mine: 2 of 4 {ZERO}",
    )


def test_only_notes_of_the_plain_attack_are_flags_of_autoattack():
    (flags,) = [check for check in report().checks if check.name == "no flag of AutoAttack"]
    assert (flags.passed, flags.evidence) == (False, f"3 of 4 {ZERO}")


def test_images_that_were_given_up_are_counted_by_stage_and_in_every_view():
    found = report()
    assert (found.base_given_up, found.candidate_given_up) == (0, 2)
    counts = {row.attack: (row.base_given_up, row.candidate_given_up) for row in found.rows}
    assert (counts["plain"], counts["mine"], counts["float64"]) == ((2, 2), (0, 2), (0, 0))
    assert "images that stand and were given up early in every view: base 0 of 2, candidate 2 of 2" in str(found)
