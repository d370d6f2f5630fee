"""How commands print a sequence with what is trained marked. Leaves the marks to `packhorse.pictures`."""

import json

import click
from rich.text import Text

from packhorse.cli.shared.printing import output_console
from packhorse.pictures import MarkedSequence


def print_marked(sequence: MarkedSequence, *, as_json: bool) -> None:
    """Prints a sequence: in colour on a terminal, with [[ ]] elsewhere, or as a line of JSON."""
    console = output_console()
    if as_json:
        click.echo(json.dumps(sequence.facts(), ensure_ascii=False))
    elif console.is_terminal:
        console.print(sequence.heading, style="bold", markup=False)
        console.print(
            Text.assemble(*((text, "black on green" if trained else "") for text, trained in sequence.runs()))
        )
        for line in (*sequence.notes, "", *sequence.table(), ""):
            console.print(line, markup=False)
    else:
        click.echo(sequence.text() + "\n")
