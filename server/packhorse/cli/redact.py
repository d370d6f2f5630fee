"""`packhorse redact`: takes sequences away from training, with every bin and position as before."""

from pathlib import Path

import click

from packhorse.dataset import (
    MANIFEST,
    TAKEDOWN_SUFFIX,
    MixtureDataset,
    Redaction,
    TakedownFile,
    ids_reader,
    parse_ids,
    redact,
    takedown_text,
)
from packhorse.server.served import Served
from packhorse.topology.checks import counted


@click.command("redact", context_settings={"show_default": True})
@click.argument("name")
@click.option(
    "--data-root",
    envvar="PACKHORSE_DATA_ROOT",
    show_envvar=True,
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the server's datasets, where NAME is.",
)
@click.option("--ids", metavar="ID,…", help="Ids of the sequences.")
@click.option(
    "--ids-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with their ids, one a line or with commas between.",
)
@click.option("--component", default="", show_default=False, help="Of a mixture, the component that they are of.")
@click.option(
    "--replace",
    "token",
    type=click.IntRange(0, 2**31 - 1),
    metavar="TOKEN",
    help="Put this token in place of each of theirs; without, they are only masked from the loss.",
)
@click.option("--seed", type=click.IntRange(0), help="The run of this seed had them before --from-position.")
@click.option(
    "--from-position",
    type=click.IntRange(0),
    help="With --seed, the position of that run (epoch times bins, plus the position there) from which on they go.",
)
@click.option("--reason", default="", show_default=False, help="Why, for those who read the file or an audit.")
@click.option(
    "--check",
    "is_check",
    is_flag=True,
    help="Change nothing: say whether NAME.takedown.toml, which may have been edited, is right, and names ids that "
    "there are.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    name: str,
    data_root: Path,
    ids: str | None,
    ids_file: Path | None,
    component: str,
    token: int | None,
    seed: int | None,
    from_position: int | None,
    reason: str,
    is_check: bool,
) -> None:
    """Take sequences of the dataset or mixture NAME away from training; every bin and position stays as it was.

    Their tokens are masked from the loss, or with --replace become another token, and are masked too. It is written
    into NAME.takedown.toml, which servers notice by themselves: streams that are open go on with it. Cursors stay
    valid. What is taken from a dataset is taken from every mixture of it.

    With --check it exits with 1 when the file names an id that is not there.
    """
    from packhorse.server.faults import ServiceError
    from packhorse.server.lazy_catalog import LazyCatalog
    from packhorse.server.mixtures import Mixtures
    from packhorse.server.takedowns import some_ids, unknown_ids

    if is_check and (ids is not None or ids_file is not None):
        raise click.UsageError("--check looks at the file as it is; leave --ids and --ids-file out")
    if not is_check and (ids is None) == (ids_file is None):
        raise click.UsageError("give --ids or --ids-file, one of them")
    if (seed is None) != (from_position is None):
        raise click.UsageError("--seed and --from-position belong together: which run had come how far")
    if (data_root / MANIFEST).exists():
        raise click.UsageError(f"--data-root {data_root} is a dataset itself; give the folder that it is in")
    try:
        served = Mixtures(LazyCatalog(data_root, set())).get(name)
    except ServiceError as error:
        raise ValueError(error.message) from None
    path = data_root / f"{name}{TAKEDOWN_SUFFIX}"
    if is_check:
        context.exit(0 if _is_right(served, path) else 1)
    wanted = parse_ids(ids, "--ids") if ids is not None else parse_ids(takedown_text(ids_file), str(ids_file))  # type: ignore[arg-type]
    _check_component(component, served)
    redaction = Redaction(
        ids=wanted, token=token, component=component, seed=seed, from_position=from_position or 0, reason=reason
    )

    def check(file: TakedownFile) -> None:
        _check_fields(file, served)
        if len(missing := unknown_ids(served, redaction)):
            raise ValueError(
                f"{component or name} has no {some_ids(missing)}; packhorse explain tells the ids of a step"
            )

    file = redact(path, redaction, check)
    of_component = f" of {component}" if component else ""
    action = "masked" if token is None else f"replaced by token {token}"
    click.echo(f"{name}{TAKEDOWN_SUFFIX}: {counted(len(wanted), 'id')}{of_component} {action}")
    click.echo(f"redactions in force: {len(file.redactions)}, the last with digest {file.chain[-1]}")


def _check_component(component: str, served: Served) -> None:
    """Refuses a component that is missing, unknown, or of no mixture."""
    names = [each.name for each in served.datasets] if isinstance(served, MixtureDataset) else []
    if names and component not in names:
        given = f"; --component {component} is none of them" if component else ""
        raise click.UsageError(f"{served.name} is a mixture: give --component, one of {', '.join(names)}{given}")
    if component and not names:
        raise click.UsageError(f"{served.name} is no mixture, and has no --component {component}; leave it out")


def _check_fields(file: TakedownFile, served: Served) -> None:
    """Refuses a file that names a component which is none."""
    from packhorse.server.takedowns import put_together

    num_components = len(served.datasets) if isinstance(served, MixtureDataset) else 0
    put_together(served, (file, *(TakedownFile() for _ in range(num_components))))


def _is_right(served: Served, path: Path) -> bool:
    """Says of every redaction of a file how many ids it names, and which of them are not there."""
    from packhorse.server.takedowns import some_ids, unknown_ids

    file = TakedownFile.parse(takedown_text(path), path.name, ids_reader(path))
    _check_fields(file, served)
    click.echo(f"{path.name}: {counted(len(file.redactions), 'redaction')}, {counted(len(file.skips), 'skip')}")
    is_right = True
    for number, redaction in enumerate(file.redactions):
        missing = unknown_ids(served, redaction)
        owner = redaction.component or served.name
        click.echo(
            f"redact[{number}]: {counted(len(redaction.ids), 'id')} of {owner}, {len(missing):,} of them not there"
        )
        if len(missing):
            is_right = False
            click.echo(f"WRONG: redact[{number}]: {owner} has no {some_ids(missing)}", err=True)
    return is_right
