"""`packhorse inspect`: what a server serves, what a prepared folder holds, or what packing makes of raw input.

Owns the command. Leaves served datasets to `served`, figures of a folder to `packhorse.analysis`, their tables to
`reports`, and raw input to `raw`. Server packages are imported only for a folder or raw input, so that a client alone
can ask a server.
"""

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from packhorse.analysis.commands.look import Look
from packhorse.analysis.commands.raw import RawOptions, check_install, is_raw, prepared_for_a_look
from packhorse.analysis.commands.served import print_served
from packhorse.cli import main
from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.printing import output_console
from packhorse.cli.shared.service import is_path, timeout_option
from packhorse.formats import require
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


@dataclass(frozen=True, kw_only=True)
class _FolderOptions:
    """The flags that choose a prepared folder's figures; their help says what they mean."""

    num_templates: int
    world_size: int | None
    batch_size: int
    accumulation: int
    cost_linear: int
    bandwidth: float | None
    tokens_per_gpu_second: float | None
    gpu_hour_price: float | None
    windows: bool
    plot: Path | None

    @property
    def run(self) -> Topology | None:
        """The topology of the user's run; None if the number of ranks was not given."""
        if self.world_size is None:
            return None
        return Topology(
            world_size=self.world_size,
            batch_size=self.batch_size,
            accumulation=self.accumulation,
            cost_linear=self.cost_linear,
        )


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
    options = _FolderOptions(**figures)
    is_input_raw = dataset is not None and is_raw(dataset)
    if not is_input_raw and (more or raw != RawOptions()):
        raise click.UsageError(
            "--max-seq-len, --length-column, --tokenizer, --sample and options after `--` are for raw lengths or text; "
            + (_why_not_raw(dataset) if dataset else "DATASET must name them")
        )
    if dataset is None or not (is_input_raw or Path(dataset).exists() or is_path(dataset)):
        print_served(target, timeout_seconds, dataset, as_json=as_json)
        return
    check_install(of_raw=is_input_raw, of_text=raw.tokenizer is not None)
    if report_path is not None and (as_json or options.plot is not None):
        raise click.UsageError("--report goes without --json and --plot: it saves a page of its own.")
    if options.gpu_hour_price is not None and options.tokens_per_gpu_second is None:
        raise click.UsageError("--gpu-hour-price needs --tokens-per-gpu-second.")
    if pruned:
        _prune(Path(dataset), pruned, as_json=as_json)
        return
    with prepared_for_a_look(dataset, raw, more) if is_input_raw else nullcontext(Look(Path(dataset))) as look:
        if report_path is not None:
            _save_report(look.folder, report_path)
        else:
            _print_folder(look, options, as_json=as_json)


def _why_not_raw(dataset: str) -> str:
    """Returns why a DATASET is not raw input, for a message."""
    return f"{dataset} is prepared, or holds what is" if Path(dataset).exists() else f"there is no file {dataset}"


def _print_folder(look: Look, options: _FolderOptions, *, as_json: bool) -> None:
    """Prints a prepared folder's figures, as tables or JSON, and saves the plot."""
    from packhorse.analysis import BANDWIDTH, dataset_report
    from packhorse.analysis.commands.plan_tables import packers_table
    from packhorse.analysis.commands.reports import report_tables
    from packhorse.analysis.commands.sentences import report_lines
    from packhorse.dataset import open_prepared

    if options.plot is not None:
        require("matplotlib", "demo")  # fails before the work, not after it
    report = dataset_report(
        open_prepared(look.folder),
        run=options.run,
        windows=options.windows,
        bandwidth=BANDWIDTH if options.bandwidth is None else options.bandwidth,
    )
    if as_json:
        click.echo(json.dumps(report.facts(options.num_templates) | look.facts(report.dataset), indent=2))
    else:
        console = output_console()
        for line in (*look.lines(report), *report_lines(report)):
            console.print(line, markup=False)
        if options.tokens_per_gpu_second is not None:
            cost_line = look.cost_line(report, options.tokens_per_gpu_second, options.gpu_hour_price)
            console.print(cost_line, markup=False)
        if look.is_raw:
            console.print(packers_table(look.packers(report.dataset)))
        for table_or_sentence in report_tables(report, options.num_templates):
            console.print(table_or_sentence)
        if look.next_command:
            console.print(f"next: {look.next_command}", markup=False, soft_wrap=True)
    if options.plot is not None:
        from packhorse.analysis.plots import save_plot

        save_plot(report, options.plot)
        click.echo(f"plot: {options.plot}", err=True)


def _save_report(folder: Path, path: Path) -> None:
    """Saves the status page of a folder as one HTML file."""
    from packhorse.analysis import costly_facts, dataset_facts, html_report
    from packhorse.dataset import open_prepared

    dataset = open_prepared(folder)
    page = html_report([dataset_facts(dataset) | {"costly": costly_facts(dataset)}])
    replace_bytes(path, page.encode())
    click.echo(f"report: {path}", err=True)


def _prune(folder: Path, numbers: tuple[int, ...], *, as_json: bool) -> None:
    """Removes versions of a dataset by their numbers, and prints those that stay."""
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
