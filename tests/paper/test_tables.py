from collections import Counter

import pytest

from lipforge.errors import InputError
from lipforge.paper import load_paper, read_table

HEADER = "table,dataset,model,variant,ratio,attack,eps,accuracy\n"


def number(table, dataset, model, ratio, attack, eps):
    """The one published number with these properties."""
    found = [
        row.accuracy
        for row in load_paper()
        if (row.table, row.dataset, row.model, row.ratio, row.attack, row.eps)
        == (table, dataset, model, ratio, attack, eps)
    ]
    assert len(found) == 1
    return found[0]


def test_every_table_of_the_paper_has_all_of_its_numbers():
    """Rows times columns of numbers, counted in the paper: table 10 is 5 models x 3 ratios x 2 attacks x 8 radii."""
    assert Counter(row.table for row in load_paper()) == {
        **{"1a": 20, "1b": 20, "2a": 8, "2b": 8, "2c": 8, "3": 8, "4": 40, "5": 40, "6": 10},
        **{"7a": 20, "7b": 20, "8": 6, "9a": 20, "9b": 20, "10": 240, "11": 240},
    }


@pytest.mark.parametrize(
    ("cell", "accuracy"),
    [
        (("1a", "CIFAR-10", "RST-AWP", "2^-7", "AA", "8/255"), 62.76),
        (("1b", "CIFAR-100", "DefEAT", "0", "clean", "0"), 64.32),
        (("2a", "CIFAR-10", "Bai2024 WRN-70-16", "0", "clean", "0"), 95.19),
        (("2c", "ImageNet", "Liu2023 Swin-L", "unstated", "AA", "4/255"), 60.04),
        (("4", "CIFAR-10", "RST-AWP", "2^-6", "AA", "8/255"), 61.96),
        (("5", "CIFAR-100", "DefEAT", "0", "AA", "8/255"), 30.57),
        (("7a", "CIFAR-10", "RST-AWP", "2^-6", "CW", "8/255"), 80.92),
        (("9a", "CIFAR-10", "TRADES", "2^-7", "transfer", "8/255"), 55.09),
        (("10", "CIFAR-10", "TRADES", "2^-8", "FGSM", "4/255"), 70.58),
        (("10", "CIFAR-10", "TRADES", "2^-8", "PGD", "4/255"), 72.81),
        (("10", "CIFAR-10", "LTD", "2^-7", "PGD", "16/255"), 28.57),
        (("10", "CIFAR-10", "RST-AWP", "2^-6", "PGD", "8/255"), 73.72),
        (("11", "CIFAR-100", "AWP", "2^-6", "FGSM", "96/255"), 3.90),
    ],
)
def test_a_number_is_as_printed(cell, accuracy):
    assert number(*cell) == accuracy


def test_the_weight_variant_and_the_calibration_sizes_are_told_apart():
    found = {row.variant: row.accuracy for row in load_paper() if row.table in ("6", "8") and row.attack == "AA"}
    assert {name: found[name] for name in ("weight", "10000 images", "20000 images")} == {
        "weight": 59.71,
        "10000 images": 59.97,
        "20000 images": 59.81,
    }


def test_the_same_setting_is_never_listed_twice_in_a_table():
    keys = Counter(
        (row.table, row.dataset, row.model, row.variant, row.ratio, row.attack, row.eps) for row in load_paper()
    )
    assert max(keys.values()) == 1


def test_a_file_of_ones_own_is_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "a,mnist,net,,2^-7,PGD,0.3,91.5\n")
    (row,) = read_table(path)
    assert (row.share, row.radius, row.accuracy, str(row)) == (2**-7, 0.3, 91.5, "mnist net 2^-7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("table,dataset\n", "lacks model, variant"),
        (HEADER, "has no rows"),
        (HEADER + "a,mnist,net,,2^-7,PGD,0.3,910\n", r"line 2: accuracy must be in percent"),
        (HEADER + "a,mnist,net,,2^-7,PGD,wide,91\n", r"line 2: eps must be a number"),
        (HEADER + "a,mnist,net,,high,PGD,0.3,91\n", r"line 2: ratio must be a number"),
        (HEADER + "a,mnist,net,,2^-7,PGD,0.3\n", r"line 2: accuracy must be a number"),
        (HEADER + "a,mnist,net,,0,PGD,-0.3,9\n", r"line 2: ratio and eps must not be negative"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_table(path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_table(path)
