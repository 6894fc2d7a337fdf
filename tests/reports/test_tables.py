import csv
import io

import pytest

from lipforge.errors import InputError
from lipforge.reports.tables import Column, Share, Table, shown

COLUMNS = (Column("model_a"), Column("robust", "share"), Column("gap", "points"), Column("n", "count"))
TABLE = Table(
    "t", "50 % & more", COLUMNS, (("a|b", Share(1 / 3, (0.25, 0.5)), Share(-0.02), 1234), ("x", None, None, 0))
)


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def test_csv_keeps_every_digit_and_gives_bounds_columns_of_their_own():
    header, first, second = rows_of(TABLE.write("csv"))
    assert header == ["model_a", "robust", "robust low", "robust high", "gap", "gap low", "gap high", "n"]
    assert [float(cell) for cell in first[1:4]] == [1 / 3, 0.25, 0.5]
    assert first[4:] == ["-0.02", "", "", "1234"]
    assert second == ["x", "", "", "", "", "", "", "0"]


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\tx"])
def test_a_spreadsheet_does_not_run_a_name_as_a_formula(name):
    table = Table("t", "t", (Column("name"),), ((name,),))
    assert rows_of(table.write("csv"))[1] == ["'" + name]


def test_markdown_escapes_what_would_break_the_table():
    lines = TABLE.write("markdown").splitlines()
    assert lines[0] == "**50 % & more**"
    assert lines[2] == r"| model\_a | robust % | gap | n |"
    assert lines[3] == "|---|---:|---:|---:|"
    assert lines[4] == r"| a\|b | 33.3 [25.0, 50.0] | -2.0 | 1,234 |"


def test_latex_escapes_every_special_character():
    hostile = Table("t", r"\input{x} 5% & #1 $a_b^c$ ~", (Column("name"),), (("{<>}",),))
    text = hostile.write("latex")
    caption = r"\caption{\textbackslash{}input\{x\} 5\% \& \#1 \$a\_b\textasciicircum{}c\$ \textasciitilde{}}"
    assert caption in text
    assert r"\{\textless{}\textgreater{}\} \\" in text


def test_latex_sets_words_left_and_numbers_right():
    assert r"\begin{tabular}{lrrr}" in TABLE.write("latex")


def test_differences_carry_their_sign_and_shares_do_not():
    assert shown(Column("d", "points"), Share(0.01, (-0.005, 0.025))) == "+1.0 [-0.5, +2.5]"
    assert shown(Column("d", "share"), Share(0.01)) == "1.0"


def test_a_row_of_the_wrong_length_is_an_error():
    with pytest.raises(InputError, match="'t' has 1 columns, got a row of 2"):
        Table("t", "t", (Column("a"),), (("x", "y"),))


def test_an_unknown_format_is_an_error():
    with pytest.raises(InputError, match="one of csv, latex, markdown, got 'xlsx'"):
        TABLE.write("xlsx")  # type: ignore[arg-type]  # the point of the test
