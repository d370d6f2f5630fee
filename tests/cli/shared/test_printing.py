"""Tables on narrow terminals and in pipes: nothing is cut."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from packhorse.cli.shared.printing import OutputConsole, facts_table

WORDS = st.text("abcdefgh0123456789-,.%()", min_size=1, max_size=40)


def printed(table, width):
    console = OutputConsole(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    console.print(table)
    return console.file.getvalue()


def without_layout(text):
    return "".join(text.split())


@given(st.integers(60, 130), st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=5))
def test_no_cell_is_cut_at_any_width(width, rows):
    table = Table("packer", "bins", "efficiency", "digest")
    for row in rows:
        table.add_row(*row)
    text = printed(table, width)
    assert "…" not in text
    for row in rows:
        for cell in row:
            assert cell in text


def test_a_table_that_fits_stays_a_table():
    table = Table("packer", "bins")
    table.add_row("best-fit", "12")
    text = printed(table, 80)
    assert [line for line in text.splitlines() if "packer" in line and "bins" in line]


@given(st.integers(20, 60), st.text("0123456789abcdef-", min_size=70, max_size=90))
def test_a_long_fact_is_folded(width, digest):
    text = printed(facts_table({"sequences": "12", "digest": digest}), width)
    assert "…" not in text
    assert [line.split()[0] for line in text.splitlines()[:2]] == ["sequences", "digest"]
    assert digest in without_layout(text)


def test_a_heading_in_a_pipe_is_a_short_line():
    console = OutputConsole(file=io.StringIO(), width=1_000_000)
    console.rule("serve and train")
    assert console.file.getvalue() == "--- serve and train\n"
