"""`packhorse inspect`: what is served, or what one prepared folder holds.

Owns the options; leaves a folder to `prepared` and a target to `served`.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.service import timeout_option
from packhorse.topology import DEFAULT_COST_LINEAR, Topology


@click.command("inspect", context_settings={"show_default": True})
@click.argument("dataset", required=False)
@target_option
@timeout_option
@click.option("--templates", "num_templates", default=10, type=click.IntRange(0), help="Templates to list.")
@click.option("--world-size", type=click.IntRange(1), help="Ranks of your run: shows how long they wait.")
@click.option("--batch-size", default=1, type=click.IntRange(1), help="Bins per rank and step.")
@click.option("--accumulation", default=1, type=click.IntRange(1), help="Steps of one optimizer step.")
@click.option(
    "--cost-linear",
    default=DEFAULT_COST_LINEAR,
    type=click.IntRange(0),
    help="Cost of a token beside attention: a sequence of L tokens costs this times L, plus L².",
)
@click.option(
    "--windows",
    is_flag=True,
    help='Compare locality windows (shuffle = "windowed(W)" of a mixture): how well they shuffle, what they read from '
    "disk. Looks at every sequence.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Save lengths, fullness, waste by max_seq_len, waiting and windows as a PNG.",
)
@click.option(
    "--prune",
    "pruned",
    multiple=True,
    type=int,
    metavar="N",
    help="Remove version N of a dataset that grew; the current one always stays.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    dataset: str | None,
    target: str,
    timeout_seconds: float | None,
    num_templates: int,
    world_size: int | None,
    windows: bool,
    plot: Path | None,
    pruned: tuple[int, ...],
    as_json: bool,
    **shape: Any,
) -> None:
    """Show a prepared folder: statistics, versions and waste without packing; or list what --target serves.

    DATASET is the folder. Other context lengths are shown beside its own. With --world-size it also shows how much GPU
    time ranks lose to waiting for each other, and which --balance helps.

    Without DATASET, or where it is a name, the datasets of --target are listed with their digests, sizes and streams.
    """
    if dataset is None or not (Path(dataset).exists() or len(Path(dataset).parts) > 1):
        from packhorse.cli.shared.served import print_served
        from packhorse.client.errors import ServerUnavailableError

        try:
            print_served(target, timeout_seconds, dataset, as_json=as_json)
        except ServerUnavailableError as error:
            said = "" if dataset is None else f"there is no folder {dataset} here, and no server has such a dataset: "
            raise click.ClickException(f"{said}{error}") from None
        return
    if find_spec("numba") is None:
        raise click.ClickException(
            "`packhorse inspect` of a folder needs numba; install it with: pip install 'packhorse[server]'"
        )
    from packhorse.cli.shared.prepared import inspect_folder, prune_versions

    if pruned:
        prune_versions(Path(dataset), pruned, as_json=as_json)
        return
    inspect_folder(
        Path(dataset),
        num_templates=num_templates,
        run=None if world_size is None else Topology(world_size=world_size, **shape),
        windows=windows,
        plot=plot,
        as_json=as_json,
    )
