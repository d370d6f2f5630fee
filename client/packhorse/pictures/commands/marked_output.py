"""Printing a sequence with its trained tokens marked, for several commands.

Owns colours and JSON. Leaves the marks to `packhorse.pictures.marked`.
"""

import json
from typing import TYPE_CHECKING

import click
from rich.text import Text

from packhorse.cli.shared.printing import output_console
from packhorse.pictures import MarkedRange, MarkedSequence

if TYPE_CHECKING:
    from packhorse.sft.explained import ExplainedSequence


def marked_of(title: str, explained: "ExplainedSequence") -> MarkedSequence:
    """Converts a sequence that `packhorse.sft` explained."""
    return MarkedSequence(
        title=title,
        ranges=tuple(
            MarkedRange(
                text=stretch.text,
                num_tokens=stretch.end - stretch.first,
                is_trained=stretch.is_trained,
                origin=stretch.field or "",
            )
            for stretch in explained.stretches
        ),
        notes=tuple(f"not in the text: {name}" for name in explained.unused),
    )


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
