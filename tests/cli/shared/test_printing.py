"""Tables on narrow terminals and in pipes: nothing is cut."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from packhorse.cli.shared.printing import OutputConsole

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
    facts = Table(show_header=False, box=None)
    facts.add_row("digest", digest)
    text = printed(facts, width)
    assert "…" not in text
    assert digest in without_layout(text)


def test_a_heading_in_a_pipe_is_a_short_line():
    console = OutputConsole(file=io.StringIO(), width=1_000_000)
    console.rule("serve and train")
    assert console.file.getvalue() == "--- serve and train\n"
