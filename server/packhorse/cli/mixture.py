"""`packhorse mixture`: shows a mixture's components and stages, and appends a stage."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import click
from rich.table import Table

from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.profiles import profile_option
from packhorse.cli.shared.service import asking, timeout_option
from packhorse.client import DatasetInfo, PackhorseError
from packhorse.dataset import MANIFEST, MIXTURE_SUFFIX, MixtureDataset, StageEntry, append_to_mixture
from packhorse.epoch import WeightsBy


@click.group("mixture")
def command() -> None:
    """Show a mixture of datasets, or append a stage to it during a run."""


@command.command("show", context_settings={"show_default": True})
@click.argument("name")
@target_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def show(name: str, target: str, timeout_seconds: float | None, as_json: bool) -> None:
    """Show the components of the mixture NAME and their shares.

    A stage is a range of positions of the run, with its own shares.
    """
    with asking(target, timeout_seconds) as client:
        info = client.get_dataset(name)
    if not info.components:
        raise PackhorseError(f"{name} is a prepared dataset, not a mixture; `packhorse inspect` shows it")
    if as_json:
        content = {
            "name": name,
            "digest": info.digest,
            "num_bins": info.num_bins,
            "max_seq_len": info.max_seq_len,
            "components": [asdict(component) for component in info.components],
            "stages": [asdict(stage) for stage in info.stages],
        }
        click.echo(json.dumps(content, indent=2))
        return
    console = output_console()
    console.print(f"{name}  {info.digest}", markup=False)
    console.print(
        f"{info.num_bins:,} bins of {info.max_seq_len:,} tokens in an epoch of {len(info.components)} components"
    )
    bins_per_draw = info.stages[-1].bins_per_draw
    if bins_per_draw > 1:
        console.print(f"drawn by steps: {bins_per_draw:,} consecutive bins are of one component")
    console.print(_components_table(info))
    console.print(_stages_table(info))


@command.command("append", context_settings={"show_default": True})
@click.argument("name")
@click.option(
    "--data-root",
    envvar="PACKHORSE_DATA_ROOT",
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the server's datasets, with NAME.mixture.toml. The command writes the file itself, without a "
    "server.",
)
@click.option(
    "--target",
    help="Instead of --data-root: the server that appends the stage (HOST:PORT). You need a token that grants "
    "AppendStage. The server refuses a position if it has already sent later bins.",
)
@profile_option
@timeout_option
@click.option(
    "--from-position",
    required=True,
    type=click.IntRange(1),
    help="Position of the run at which the stage begins: epoch times the mixture's bins, plus the position there.",
)
@click.option("--weights", metavar="NAME=W,…", help="Weight of each component, e.g. web=60,code=40.")
@click.option(
    "--by",
    default=WeightsBy.BINS.value,
    type=click.Choice([by.value for by in WeightsBy]),
    help="Whether weights are shares of bins or of tokens.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="First remove the stages that begin at the position or later. Without --weights, add no stage.",
)
def append(
    name: str,
    data_root: Path | None,
    target: str | None,
    timeout_seconds: float | None,
    from_position: int,
    weights: str | None,
    by: str,
    replace: bool,
) -> None:
    """Append a stage to the mixture NAME, with other weights.

    The stage begins at a position of the run; nothing before it changes.

    --replace replaces or removes stages that no run has reached.

    New components are added after the existing ones. Servers notice the change, and streams continue. A run that is
    already past the position is refused, so choose a position well ahead of it.
    """
    if weights is None and not replace:
        raise click.UsageError("give --weights NAME=W,…, or --replace, which removes stages")
    if target is not None:
        with asking(target, timeout_seconds) as client:
            digest_before = client.get_dataset(name).digest
            info = client.append_stage(
                name,
                from_position=from_position,
                weights=None if weights is None else _weights(weights),
                by=by,
                replace=replace,
            )
        now = _Stages.of_info(info)
    elif data_root is not None:
        digest_before, now = _append_to_file(data_root, name, from_position, weights, by, replace=replace)
    else:
        raise click.UsageError("give --data-root DIR, where the mixture's file is, or --target HOST:PORT, a server")
    _print_last_stage(name, digest_before, now)


class _Stages(NamedTuple):
    """The stages of a mixture, as far as `append` prints them."""

    digest: str
    first_positions: Sequence[int]
    """First position of each stage."""
    num_bins: int
    """Bins of an epoch."""
    components: Sequence[str]
    shares: Sequence[Fraction]
    """Share of each component in the bins of the last stage."""

    @classmethod
    def of_info(cls, info: DatasetInfo) -> "_Stages":
        """Returns the stages that a server describes."""
        return cls(
            digest=info.digest,
            first_positions=[stage.first_position for stage in info.stages],
            num_bins=info.num_bins,
            components=[each.name for each in info.components],
            shares=[Fraction(share) for share in info.stages[-1].shares],
        )

    @classmethod
    def of_mixture(cls, mixture: MixtureDataset) -> "_Stages":
        """Returns the stages of a mixture that is open."""
        return cls(
            digest=mixture.manifest.digest,
            first_positions=[first_position for first_position, _digest in mixture.chain],
            num_bins=mixture.num_bins,
            components=mixture.file.names,
            shares=mixture.shares[-1],
        )


def _append_to_file(
    data_root: Path, name: str, from_position: int, weights: str | None, by: str, *, replace: bool
) -> tuple[str, _Stages]:
    """Appends a stage to a mixture's file, without a server; returns the digest before, and the stages now."""
    from packhorse.server.datasets.lazy_catalog import LazyCatalog
    from packhorse.server.datasets.mixtures import Mixtures

    path = data_root / f"{name}{MIXTURE_SUFFIX}"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: --data-root has no mixture {name}")
    if (data_root / name / MANIFEST).exists():
        raise ValueError(
            f"--data-root also has a dataset {name}, which is served instead of {path.name}; rename one of them"
        )
    catalog = Mixtures(LazyCatalog(data_root, checked=set()))  # no checksums were compared before
    stage = None if weights is None else StageEntry(weights=_weights(weights), by=WeightsBy(by))
    before, now = append_to_mixture(path, stage, from_position, catalog.component, replace=replace)
    return before.manifest.digest, _Stages.of_mixture(now)


def _print_last_stage(name: str, digest_before: str, now: _Stages) -> None:
    """Prints where the last stage begins, whether anything changes, the digests, and the components' shares."""
    epoch, position = divmod(now.first_positions[-1], now.num_bins)
    click.echo(f"{name}: stage {len(now.first_positions) - 1} begins at position {position:,} of epoch {epoch:,}")
    if digest_before == now.digest:  # such as --replace without --weights, if no stage begins there or later
        click.echo("nothing changes")
    click.echo(f"digest before: {digest_before}\ndigest now:    {now.digest}")
    pairs = zip(now.components, now.shares, strict=True)
    click.echo("shares of bins: " + ", ".join(f"{component} {float(share):.2%}" for component, share in pairs))


def _weights(text: str) -> dict[str, int | Decimal]:
    """Reads `web=60,code=40` as name → weight; raises a UsageError if the text is something else."""
    weights: dict[str, int | Decimal] = {}
    for part in text.split(","):
        name, _, weight = map(str.strip, part.rpartition("="))
        if name in weights:
            raise click.UsageError(f"--weights names {name!r} twice; give each component one weight")
        wrong = click.UsageError(f"--weights {part.strip()!r} is not NAME=WEIGHT, e.g. web=60,code=40")
        if not name:
            raise wrong
        try:
            weights[name] = int(weight) if weight.isdecimal() else Decimal(weight)
        except InvalidOperation:
            raise wrong from None
    return weights


def _components_table(info: DatasetInfo) -> Table:
    """Returns a table with a row of sizes for each component."""
    rows = []
    for each in info.components:
        sizes = (each.num_bins, each.num_sequences, each.own_tokens, each.max_seq_len, each.rows_per_bin)
        rows.append((each.name, *(f"{size:,}" for size in sizes), each.digest))
    columns = ("component", "bins", "sequences", "tokens", "max_seq_len", "rows a bin", "digest")
    return table(*columns, rows=rows, left=("digest",))


def _stages_table(info: DatasetInfo) -> Table:
    """Returns a table with a row for each stage: where it begins, and each component's share of bins."""
    rows = []
    for number, stage in enumerate(info.stages):
        epoch, position = divmod(stage.first_position, info.num_bins)
        shares = (f"{float(Fraction(share)):.2%}" for share in stage.shares)
        rows.append((str(number), f"{epoch:,}", f"{position:,}", *shares))
    names = (each.name for each in info.components)
    return table("stage", "from epoch", "position", *names, rows=rows, title="shares of bins")
