"""What TLS and a token cost: the first bin and a stream's throughput, beside plain text."""

import subprocess
from itertools import count
from pathlib import Path
from typing import Any

from bench_first_bin import first_block_ms
from bench_streaming import BATCH_SIZE, million_ids_per_second
from harness import Row, Sample, interleaved
from workload import Workspace, in_words, serving

from packhorse.client import Client, connect
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token
from packhorse.topology import Topology

NOTE = (
    "tls: two `packhorse serve` in processes of their own, on loopback: one in plain text, one with a certificate "
    "(ECDSA, P-256) and a token file; the same requests to both in turn. “new connection” includes TCP, both "
    "handshakes and reading the client's files."
)
_LEAST_RATIO, _MOST_MS = 0.7, 2.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes, size = workspace.sizes, workspace.sizes.medium
    root, num_ids, epochs = workspace.root_of(size), min(sizes.streamed_ids, size * 3 // 4), count()
    flags, access = papers(workspace.root)
    with (
        serving(root) as (plain_address, _),
        serving(root, *flags) as (tls_address, _),
        connect(plain_address) as plain,
        connect(tls_address, **access) as secure,
    ):

        def warm(client: Client) -> float:
            return first_block_ms(client, size, next(epochs))

        def cold(address: str, **access: Any) -> float:
            with connect(address, **access) as client:
                return warm(client)

        def rate(client: Client) -> float:
            topology = Topology(batch_size=BATCH_SIZE)
            with client.stream_bins(f"bench-{size}", epoch=next(epochs), seed=1, topology=topology) as stream:
                return million_ids_per_second(lambda: len(next(stream).ids), num_ids)

        interleaved(3, lambda: warm(plain), lambda: warm(secure))
        first = interleaved(sizes.streams, lambda: warm(secure), lambda: warm(plain))
        new = interleaved(sizes.streams // 3, lambda: cold(tls_address, **access), lambda: cold(plain_address))
        interleaved(1, lambda: rate(secure), lambda: rate(plain))
        rates = interleaved(sizes.repeats, lambda: rate(secure), lambda: rate(plain))
    sequences = f"{in_words(size)} sequences"
    return [
        _later("first bin with TLS, open channel", sequences, *first),
        _later("first bin with TLS, new connection", sequences, *new),
        _slower(f"{sequences}, {in_words(num_ids)} ids read", *rates),
    ]


def _later(what: str, size: str, tls: tuple[float, ...], plain: tuple[float, ...]) -> Row:
    ours, peer = Sample(tls, "ms"), Sample(plain, "ms")
    return Row(
        what=what,
        size=size,
        ours=str(ours),
        peer=f"{peer}, plain text",
        ratio=peer.median / ours.median,
        target=f"≤ {_MOST_MS:g} ms later",
        reached=ours.median - peer.median <= _MOST_MS,
    )


def _slower(size: str, tls: tuple[float, ...], plain: tuple[float, ...]) -> Row:
    ours, peer = Sample(tls, "M ids/s"), Sample(plain, "M ids/s")
    ratio = ours.median / peer.median
    return Row(
        what="stream with TLS",
        size=size,
        ours=str(ours),
        peer=f"{peer}, plain text",
        ratio=ratio,
        target=f"≥ {_LEAST_RATIO:g}×",
        reached=ratio >= _LEAST_RATIO,
    )


def papers(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Makes a certificate that vouches for itself, and a token: flags of the server, arguments of `connect`."""
    cert, key, tokens, token_file = (folder / name for name in ("tls.pem", "tls.key", "tokens", "token"))
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    names = ["-subj", "/CN=packhorse benchmarks", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", *new_key, *names, "-days", "2", "-out", str(cert)], check=True, capture_output=True
    )
    token = new_token()
    tokens.write_text(f"{Grant('bench', hash_of(token))}\n")
    token_file.write_text(token)
    flags = {"--tls-cert": cert, "--tls-key": key, "--token-file": tokens}
    return [str(part) for flag in flags.items() for part in flag], {"ca": cert, "token_file": token_file}
