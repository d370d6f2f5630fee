"""`packhorse redact`: takes sequences away from training, with every bin and position as before."""

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    MANIFEST,
    TAKEDOWN_SUFFIX,
    MixtureDataset,
    PreparedDataset,
    Redaction,
    TakedownFile,
    parse_ids,
    redact,
    takedown_text,
)
from packhorse.server.served import Served

_MOST_NAMED = 10


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
def command(
    name: str,
    data_root: Path,
    ids: str | None,
    ids_file: Path | None,
    component: str,
    token: int | None,
    seed: int | None,
    from_position: int | None,
    reason: str,
) -> None:
    """Take sequences of the dataset or mixture NAME away from training; every bin and position stays as it was.

    Their tokens are masked from the loss, or with --replace become another token, and are masked too. It is written
    into NAME.takedown.toml, which servers notice by themselves: streams that are open go on with it. Cursors stay
    valid. What is taken from a dataset is taken from every mixture of it.
    """
    from packhorse.server.faults import ServiceError
    from packhorse.server.lazy_catalog import LazyCatalog
    from packhorse.server.mixtures import Mixtures
    from packhorse.server.takedowns import put_together

    if (ids is None) == (ids_file is None):
        raise click.UsageError("give --ids or --ids-file, one of them")
    if (seed is None) != (from_position is None):
        raise click.UsageError("--seed and --from-position belong together: which run had come how far")
    if (data_root / MANIFEST).exists():
        raise click.UsageError(f"--data-root {data_root} is a dataset itself; give the folder that it is in")
    wanted = parse_ids(ids, "--ids") if ids is not None else parse_ids(takedown_text(ids_file), str(ids_file))  # type: ignore[arg-type]
    try:
        served = Mixtures(LazyCatalog(data_root, set())).get(name)
    except ServiceError as error:
        raise ValueError(error.message) from None
    _check_component(component, served)
    redaction = Redaction(
        ids=wanted, token=token, component=component, seed=seed, from_position=from_position or 0, reason=reason
    )

    def check(file: TakedownFile) -> None:
        num_components = len(served.datasets) if isinstance(served, MixtureDataset) else 0
        put_together(served, (file, *(TakedownFile() for _ in range(num_components))))
        _refuse_unknown(wanted, served, component)

    file = redact(data_root / f"{name}{TAKEDOWN_SUFFIX}", redaction, check)
    of_component = f" of {component}" if component else ""
    action = "masked" if token is None else f"replaced by token {token}"
    click.echo(f"{name}{TAKEDOWN_SUFFIX}: {len(wanted):,} ids{of_component} {action}")
    click.echo(f"{len(file.redactions)} redactions, the last with digest {file.chain[-1]}")


def _check_component(component: str, served: Served) -> None:
    """Refuses a component that is missing, unknown, or of no mixture."""
    names = [each.name for each in served.datasets] if isinstance(served, MixtureDataset) else []
    if names and component not in names:
        given = f"; --component {component} is none of them" if component else ""
        raise click.UsageError(f"{served.name} is a mixture: give --component, one of {', '.join(names)}{given}")
    if component and not names:
        raise click.UsageError(f"{served.name} is no mixture, and has no --component {component}; leave it out")


def _refuse_unknown(ids: NDArray[np.int64], served: Served, component: str) -> None:
    dataset: PreparedDataset | Served = served
    if isinstance(served, MixtureDataset):
        dataset = next(each for each in served.datasets if each.name == component)
    found = dataset.epoch(0, 0).locate(ids)
    missing = np.setdiff1d(ids, found.ids[found.lengths >= 0])
    if len(missing):
        named = ", ".join(map(str, missing[:_MOST_NAMED].tolist()))
        more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
        raise ValueError(f"{dataset.name} has no ids {named}{more}; packhorse explain tells the ids of a step")
