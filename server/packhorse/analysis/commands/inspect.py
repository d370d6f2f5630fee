"""`packhorse inspect`: what a server serves, what a prepared folder holds, or what packing makes of raw input.

Owns the command and the table of served datasets. Leaves figures of a folder to `packhorse.analysis`, their tables to
`reports`, and raw input to `raw`. Server packages are imported only for a folder or raw input, so that a client alone
can ask a server.
"""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from packhorse.analysis.commands.raw import Look, RawOptions, check_install, is_raw, prepared_for_a_look
from packhorse.cli import main
from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.service import access_of_command, asking, asking_for, is_path, timeout_option
from packhorse.client import DatasetInfo, PackhorseError
from packhorse.formats import require
from packhorse.proof import ask_activity
from packhorse.storage import replace_bytes
from packhorse.topology import DEFAULT_COST_LINEAR, Topology


class _Command(click.Command):
    """The command, with an error message that says where options of `prepare` and `tokenize` go: after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments as click does; explains an option that is one of `prepare` or `tokenize`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for name in ("prepare", "tokenize"):
                other = main.get_command(ctx.find_root(), name)
                if other is not None and any(error.option_name in option.opts for option in other.params):
                    message = f"{error.option_name} is an option of `packhorse {name}`: it goes after `--`, at the end."
                    raise click.UsageError(message, ctx) from None
            raise


@click.command("inspect", cls=_Command, context_settings={"show_default": True})
@click.argument("dataset", required=False)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF PREPARE]")
@flags_of(RawOptions, "raw")
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
    help="Cost of a token without attention: a sequence of L tokens costs this times L, plus L².",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0),
    metavar="GB/S",
    help="If ranks share bins: GB/s that a rank receives from others while it computes 400 TFLOP/s; 0 if "
    "communication takes no time. By default 200.",
)
@click.option(
    "--tokens-per-gpu-second",
    type=click.FloatRange(0, min_open=True),
    help="Speed of your training, padding included: shows the GPU-hours that padding costs.",
)
@click.option("--gpu-hour-price", type=click.FloatRange(0, min_open=True), help="What a GPU-hour costs you.")
@click.option(
    "--windows",
    is_flag=True,
    help='Compare locality windows (shuffle = "windowed(W)" of a mixture): how well they shuffle, and what they read '
    "from disk. Reads every sequence.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Save lengths, fullness, waste by max_seq_len, waiting and windows as a PNG.",
)
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path),
    help="Save the status page of this folder as one HTML file, which needs no server.",
)
@click.option(
    "--prune",
    "pruned",
    multiple=True,
    type=int,
    metavar="N",
    help="Remove version N of a dataset that was appended to; the current version always stays.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    dataset: str | None,
    more: tuple[str, ...],
    raw: RawOptions,
    target: str,
    timeout_seconds: float | None,
    pruned: tuple[int, ...],
    report_path: Path | None,
    as_json: bool,
    **figures: Any,
) -> None:
    """Show what packing makes of lengths or text, a prepared folder, or what --target serves.

    DATASET may be lengths or tokens that `packhorse prepare` reads, or with --tokenizer text, chats or pairs: a file, a
    folder, a quoted pattern or a URL. They are planned in a temporary folder, which goes again. Options of `packhorse
    prepare` and `packhorse tokenize` may follow `--`.

    If DATASET is a prepared folder, it shows its versions too. With --world-size it shows how much GPU time ranks lose
    to waiting for each other, and which --balance helps.

    Without DATASET, or if DATASET is a name, it lists the datasets of --target with their digests, sizes and streams.
    """
    is_of_raw = dataset is not None and is_raw(dataset)
    if not is_of_raw and (more or raw != RawOptions()):
        raise click.UsageError(
            "--max-seq-len, --length-column, --tokenizer, --sample and options after `--` are for raw lengths or text; "
            + (_why_not_raw(dataset) if dataset else "DATASET must name them")
        )
    if dataset is None or not (is_of_raw or Path(dataset).exists() or is_path(dataset)):
        _print_served(target, timeout_seconds, dataset, as_json=as_json)
        return
    check_install(of_raw=is_of_raw, of_text=raw.tokenizer is not None)
    if report_path is not None and (as_json or figures["plot"] is not None):
        raise click.UsageError("--report goes without --json and --plot: it saves a page of its own.")
    if figures["gpu_hour_price"] is not None and figures["tokens_per_gpu_second"] is None:
        raise click.UsageError("--gpu-hour-price needs --tokens-per-gpu-second.")
    if pruned:
        _prune(Path(dataset), pruned, as_json=as_json)
        return
    with prepared_for_a_look(dataset, raw, more) if is_of_raw else nullcontext(Look(Path(dataset))) as look:
        if report_path is not None:
            _save_report(look.folder, report_path)
        else:
            _print_folder(look, as_json=as_json, **figures)


def _why_not_raw(dataset: str) -> str:
    """Returns why a DATASET is not raw input, for a message."""
    return f"{dataset} is prepared, or holds what is" if Path(dataset).exists() else f"there is no file {dataset}"


def _print_folder(
    look: Look,
    *,
    num_templates: int,
    world_size: int | None,
    plot: Path | None,
    windows: bool,
    bandwidth: float | None,
    tokens_per_gpu_second: float | None,
    gpu_hour_price: float | None,
    as_json: bool,
    **shape: Any,
) -> None:
    """Prints a prepared folder's figures, as tables or JSON, and saves the plot; `shape` has fields of `Topology`."""
    from packhorse.analysis import BANDWIDTH, dataset_report
    from packhorse.analysis.commands.plan_tables import packers_table
    from packhorse.analysis.commands.reports import report_tables
    from packhorse.analysis.commands.sentences import report_lines
    from packhorse.dataset import open_prepared

    if plot is not None:
        require("matplotlib", "demo")  # fails before the work, not after it
    run = None if world_size is None else Topology(world_size=world_size, **shape)
    report = dataset_report(
        open_prepared(look.folder), run=run, windows=windows, bandwidth=BANDWIDTH if bandwidth is None else bandwidth
    )
    if as_json:
        click.echo(json.dumps(report.facts(num_templates) | look.facts(report.dataset), indent=2))
    else:
        console = output_console()
        for line in (*look.lines(report), *report_lines(report)):
            console.print(line, markup=False)
        if tokens_per_gpu_second is not None:
            console.print(look.cost_line(report, tokens_per_gpu_second, gpu_hour_price), markup=False)
        if look.is_raw:
            console.print(packers_table(look.packers(report.dataset)))
        for part in report_tables(report, num_templates):
            console.print(part)
        if look.next_command:
            console.print(f"next: {look.next_command}", markup=False, soft_wrap=True)
    if plot is not None:
        from packhorse.analysis.plots import save_plot

        save_plot(report, plot)
        click.echo(f"plot: {plot}", err=True)


def _save_report(folder: Path, path: Path) -> None:
    from packhorse.analysis import costly_facts, dataset_facts, html_report
    from packhorse.dataset import open_prepared

    dataset = open_prepared(folder)
    page = html_report([dataset_facts(dataset) | {"costly": costly_facts(dataset)}])
    replace_bytes(path, page.encode())
    click.echo(f"report: {path}", err=True)


def _prune(folder: Path, numbers: tuple[int, ...], *, as_json: bool) -> None:
    from packhorse.analysis import version_facts
    from packhorse.analysis.commands.sentences import version_line
    from packhorse.dataset import prune_version, versions_of

    for number in numbers:
        prune_version(folder, number)
    versions = versions_of(folder)
    if as_json:
        click.echo(json.dumps([version_facts(version) for version in versions], indent=2))
    else:
        click.echo("\n".join(map(version_line, versions)))


def _print_served(target: str, timeout_seconds: float | None, dataset: str | None, *, as_json: bool) -> None:
    """Prints the datasets of a target, or one of them, with their digests and sizes.

    If a folder was replaced while it was served, its older digests follow, because runs that began with one of them
    continue with it. If the access token grants GetActivity, the open streams of each digest are shown too.
    """
    if dataset is None:
        with asking(target, timeout_seconds) as client:
            datasets = client.list_datasets()
    else:
        with asking_for(target, timeout_seconds, dataset) as (client, name):
            datasets = [client.get_dataset(name)]
    streams = _streams_by_digest(target)
    if as_json:
        facts = [asdict(info) for info in datasets]
        if streams is not None:
            for each, info in zip(facts, datasets, strict=True):
                each["open_streams"] = {digest: streams[info.name, digest] for digest in _digests_of(info)}
        click.echo(json.dumps(facts, indent=2))
        return
    rows = []
    for info in datasets:
        sizes = (info.max_seq_len, info.num_sequences, info.num_bins, info.total_tokens)
        numbers = (*(f"{size:,}" for size in sizes), f"{info.efficiency:.2%}")
        for number, digest in enumerate(_digests_of(info)):
            row = [info.name, digest, *numbers] if number == 0 else ["  older", digest, *("" for _ in numbers)]
            if streams is not None:
                row.append(str(streams[info.name, digest]))
            rows.append(row)
    columns = ["dataset", "digest", "max_seq_len", "sequences", "bins", "tokens", "efficiency"]
    if streams is not None:
        columns.append("streams")
    console = output_console()
    console.print(table(*columns, rows=rows, left=("digest",), is_plain=True))
    for info in datasets:
        if info.context_rule is not None:
            console.print(f"{info.name}: {info.context_rule}", markup=False)


def _digests_of(info: DatasetInfo) -> list[str]:
    """Returns a dataset's digests, the newest first."""
    return [info.digest, *reversed(info.older_digests)]


def _streams_by_digest(target: str) -> Counter[tuple[str, str]] | None:
    """Returns the number of open streams of each (dataset, digest).

    Returns None for an embedded target, and if the servers refuse the question or cannot be reached.
    """
    if target.startswith("embedded:"):
        return None
    try:
        servers = ask_activity(target, access=access_of_command())
    except PackhorseError:
        return None
    streams = (stream for server in servers for stream in server.streams)
    # A stream's digest continues with "+…" if positions are skipped.
    return Counter((stream.dataset, stream.digest.partition("+")[0]) for stream in streams)
