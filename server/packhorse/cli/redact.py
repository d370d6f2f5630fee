"""`packhorse redact`: removes sequences from training, without changing bins or positions."""

from pathlib import Path

import click

from packhorse.cli.shared.options import dataset_argument
from packhorse.dataset import (
    MANIFEST,
    MIXTURE_SUFFIX,
    TAKEDOWN_SUFFIX,
    MixtureDataset,
    Redaction,
    TakedownFile,
    parse_ids,
    read_ids_of,
    redact,
    takedown_text,
)
from packhorse.server.datasets.protocols import Dataset
from packhorse.topology.checks import counted


@click.command("redact", context_settings={"show_default": True})
@dataset_argument
@click.option(
    "--data-root",
    envvar="PACKHORSE_DATA_ROOT",
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the server's datasets, if DATASET is a name.",
)
@click.option(
    "--ids",
    multiple=True,
    metavar="ID,…|KEY",
    help="Ids of the sequences, or the key of one, such as its URL. May be given several times.",
)
@click.option(
    "--ids-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with their ids or keys, one per line; ids may also be separated by commas.",
)
@click.option("--component", default="", show_default=False, help="In a mixture, the component of these sequences.")
@click.option(
    "--replace",
    "token",
    type=click.IntRange(0, 2**31 - 1),
    metavar="TOKEN",
    help="Replace each of their tokens with this token; by default they are only masked from the loss.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of a run that had trained on them before --from-position.")
@click.option(
    "--from-position",
    type=click.IntRange(0),
    help="With --seed, the position of that run where the redaction begins: epoch times bins, plus the position there.",
)
@click.option("--reason", default="", show_default=False, help="Why, for people who read the file or an audit.")
@click.option(
    "--check",
    "is_check",
    is_flag=True,
    help="Only check DATASET.takedown.toml, and that the ids and keys in it exist.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    dataset: str,
    data_root: Path | None,
    ids: tuple[str, ...],
    ids_file: Path | None,
    component: str,
    token: int | None,
    seed: int | None,
    from_position: int | None,
    reason: str,
    is_check: bool,
) -> None:
    """Remove sequences of DATASET from training. Bins and positions stay the same.

    DATASET is a prepared folder, a mixture's file, or with --data-root a name there. The tokens of these sequences are
    masked from the loss; with --replace they also become another token. The command writes DATASET.takedown.toml.
    Servers notice it, and apply it to open streams too. Cursors stay valid. A redaction of a dataset applies to every
    mixture that contains it.

    With --check it exits with 1 if the file names an id or key that does not exist.
    """
    from packhorse.server.datasets.taken_away.takedowns import put_together
    from packhorse.server.datasets.taken_away.unknown_names import unknown_names

    if is_check and (ids or ids_file is not None):
        raise click.UsageError("--check looks at the file as it is; leave --ids and --ids-file out")
    if not is_check and bool(ids) == (ids_file is not None):  # both or neither
        raise click.UsageError("give --ids or --ids-file, one of them")
    if (seed is None) != (from_position is None):
        raise click.UsageError("--seed and --from-position belong together; give both")
    root, name = _locate(dataset, data_root)
    served = _open_dataset(root, name)
    path = root / f"{name}{TAKEDOWN_SUFFIX}"
    if is_check:
        context.exit(0 if _check_file(served, path) else 1)
    named = parse_ids(takedown_text(ids_file), str(ids_file)) if ids_file else parse_ids("\n".join(ids), "--ids")
    _check_component(component, served)
    redaction = Redaction(
        ids=named.ids,
        keys=named.keys,
        token=token,
        component=component,
        seed=seed,
        from_position=from_position or 0,
        reason=reason,
    )

    def check(file: TakedownFile) -> None:
        """Raises a ValueError if the file with this redaction could not be served."""
        put_together(served, (file,))  # for its ValueError only, if the file does not fit what is served
        if len(missing := unknown_names(served, redaction)):
            raise ValueError(f"{component or name} has no {missing}; `packhorse show --step` lists the ids of a step")

    file = redact(path, redaction, check).resolved(served.key_tables)
    of_component = f" of {component}" if component else ""
    action = "masked" if token is None else f"replaced by token {token}"
    click.echo(f"{path.name}: {_ids_and_keys(redaction)}{of_component} {action}")
    click.echo(f"redactions in force: {len(file.redactions)}, the last with digest {file.chain[-1]}")


def _locate(dataset: str, data_root: Path | None) -> tuple[Path, str]:
    """Returns the folder that holds a dataset or mixture, and its name there."""
    given = Path(dataset)
    folder = given.resolve()
    if data_root is None and given.name.endswith(MIXTURE_SUFFIX) and folder.is_file():
        return folder.parent, given.name.removesuffix(MIXTURE_SUFFIX)
    if (folder / MANIFEST).is_file() and (data_root is None or len(given.parts) > 1):
        return folder.parent, folder.name
    if data_root is None:
        raise click.UsageError(
            f"{dataset} is not a prepared folder or a mixture's file; give one of these, or --data-root, the folder "
            "that holds it"
        )
    if (data_root / MANIFEST).exists():
        raise click.UsageError(f"--data-root {data_root} is a dataset itself; give the folder that it is in")
    return data_root, dataset


def _open_dataset(root: Path, name: str) -> Dataset:
    """Opens a dataset or mixture as a server would; raises a ValueError if it cannot be served."""
    from packhorse.server.base.faults import ServiceError
    from packhorse.server.datasets.lazy_catalog import LazyCatalog
    from packhorse.server.datasets.mixtures import Mixtures

    try:
        return Mixtures(LazyCatalog(root, checked=set())).get(name)  # no checksums were compared before
    except ServiceError as error:
        raise ValueError(error.message) from None


def _ids_and_keys(redaction: Redaction) -> str:
    """Returns how many ids and keys a redaction names, as "3 ids and 1 key"."""
    counts = ((len(redaction.ids), "id"), (len(redaction.keys), "key"))
    return " and ".join(counted(count, noun) for count, noun in counts if count)


def _check_component(component: str, served: Dataset) -> None:
    """Raises a UsageError if a mixture's component is missing or unknown, or if one is given for a dataset."""
    names = [each.name for each in served.datasets] if isinstance(served, MixtureDataset) else []
    if names and component not in names:
        given = f"; --component {component} is none of them" if component else ""
        raise click.UsageError(f"{served.name} is a mixture: give --component, one of {', '.join(names)}{given}")
    if component and not names:
        raise click.UsageError(f"{served.name} is not a mixture; leave out --component {component}")


def _check_file(served: Dataset, path: Path) -> bool:
    """Prints how many ids each redaction of a file names and which of them do not exist; returns whether all exist."""
    from packhorse.server.datasets.taken_away.takedowns import put_together
    from packhorse.server.datasets.taken_away.unknown_names import unknown_names

    file = TakedownFile.parse(takedown_text(path), path.name, read_ids_of(path))
    put_together(served, (file,))  # for its ValueError only, as in `command`
    click.echo(f"{path.name}: {counted(len(file.redactions), 'redaction')}, {counted(len(file.skips), 'skip')}")
    are_all_there = True
    for number, redaction in enumerate(file.redactions):
        missing = unknown_names(served, redaction)
        owner = redaction.component or served.name
        click.echo(f"redact[{number}]: {_ids_and_keys(redaction)} of {owner}, {len(missing):,} of them missing")
        if len(missing):
            are_all_there = False
            click.echo(f"WRONG: redact[{number}]: {owner} has no {missing}", err=True)
    return are_all_there
