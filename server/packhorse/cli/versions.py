"""`packhorse versions`: what a growing dataset holds, and what of it may go.

Owns how versions are shown; leaves what a version is to `packhorse.dataset`.
"""

import json
from pathlib import Path

import click

from packhorse.dataset import Version, prune_version, versions_of


@click.command("versions")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--prune", "numbers", multiple=True, type=int, metavar="N", help="Remove version N; the current one always stays."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(folder: Path, numbers: tuple[int, ...], as_json: bool) -> None:
    """List the versions of the prepared dataset in FOLDER, which `packhorse prepare --append` makes."""
    for number in numbers:
        prune_version(folder, number)
    versions = versions_of(folder)
    if as_json:
        click.echo(json.dumps([facts(version) for version in versions], indent=2))
    else:
        for version in versions:
            click.echo(line_of(version))


def facts(version: Version) -> dict[str, object]:
    """Returns what is told of a version, as JSON can hold it."""
    manifest = version.manifest
    return {
        "version": version.number,
        "is_current": version.is_current,
        "n_sequences": manifest.n_sequences,
        "n_bins": manifest.n_bins,
        "digest": manifest.digest,
        "path": str(version.path),
    }


def line_of(version: Version) -> str:
    """Returns what people are told of a version."""
    manifest = version.manifest
    current = " (current)" if version.is_current else ""
    return (
        f"version {version.number}{current}: {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins, digest "
        f"{manifest.digest}, in {version.path}"
    )
