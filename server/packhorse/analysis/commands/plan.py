"""`packhorse plan`: plans of one dataset compared before any is prepared.

Owns the group of both commands. Leaves packers to `plan_compare` and ranks that share a bin to `plan_context`.
"""

import click

from packhorse.analysis.commands.plan_compare import compare
from packhorse.analysis.commands.plan_context import context


@click.group("plan")
def command() -> None:
    """Plan without preparing: compare packers, or ways to share bins."""


command.add_command(compare)
command.add_command(context)
