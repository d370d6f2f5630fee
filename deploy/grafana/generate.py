"""Writes `packhorse.json`, Grafana's dashboard of the server's metrics, and the chart's copies of it and of the alerts.

With --check it only compares. Owns which panels there are. A panel of a metric that the server lacks is refused.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from packhorse.server.watching.metrics import metric_names

FILE = Path(__file__).with_name("packhorse.json")
ALERTS = FILE.parents[1] / "prometheus" / "alerts.yml"
IN_CHART = FILE.parents[1] / "helm" / "packhorse" / "files"
"""Copies, because a chart is also used without the repository around it."""
WIDTH = HEIGHT = 8
IN_A_ROW = 3
JOB = '{job="packhorse"}'


def rate(metric: str) -> str:
    """A counter's rate over what a pixel of the panel covers."""
    return f"rate({metric}{JOB}[$__rate_interval])"


def quantile(share: float, histogram: str, by: str = "le") -> str:
    """A histogram's quantile over the same time."""
    return f"histogram_quantile({share}, sum by ({by}) ({rate(f'{histogram}_bucket')}))"


def share_of_limit(metric: str, limit: str) -> str:
    """A gauge over its limit, where the limit is known."""
    return f"{metric}{JOB} / ({limit}{JOB} > 0)"


def p50_and_p99(histogram: str) -> dict[str, str]:
    """Both quantiles, by their legends."""
    return {"p50": quantile(0.5, histogram), "p99": quantile(0.99, histogram)}


PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Open streams", "short", {"{{instance}}": f"sum by (instance) (packhorse_active_streams{JOB})"}),
    ("Tokens a second", "short", {"{{dataset}}": f"sum by (dataset) ({rate('packhorse_tokens_streamed_total')})"}),
    (
        "Steps that the slowest rank is behind",
        "short",
        {"{{dataset}}": f"max by (dataset) (packhorse_rank_lag_steps{JOB})"},
    ),
    ("From a stream's request to its first block", "s", p50_and_p99("packhorse_first_block_seconds")),
    ("Making a block", "s", p50_and_p99("packhorse_block_seconds")),
    (
        "Streams whose trainer does not read just now",
        "short",
        {"{{instance}}": f"sum by (instance) (packhorse_flow_control_streams{JOB})"},
    ),
    ("Wait for a thread, p99", "s", {"{{lane}}": quantile(0.99, "packhorse_lane_wait_seconds", "le, lane")}),
    ("Work that waits for a thread", "short", {"{{lane}}": f"sum by (lane) (packhorse_lane_waiting{JOB})"}),
    (
        "Streams that continue after a break, a second",
        "short",
        {"{{dataset}}": f"sum by (dataset) ({rate('packhorse_streams_resumed_total')})"},
    ),
    (
        "Calls a second",
        "short",
        {
            "{{grpc_method}} {{grpc_status}}": (
                f"sum by (grpc_method, grpc_status) ({rate('grpc_server_call_duration_seconds_count')})"
            )
        },
    ),
    ("Errors a second", "short", {"{{reason}}": f"sum by (reason) ({rate('packhorse_errors_total')})"}),
    (
        "GPU time that ranks wait for each other",
        "percentunit",
        {"{{dataset}}, once in a {{wait}}": f"max by (dataset, wait) (packhorse_waiting_ratio{JOB})"},
    ),
    (
        "Packing efficiency",
        "percentunit",
        {"{{dataset}}": f"min by (dataset) (packhorse_dataset_packing_efficiency_ratio{JOB})"},
    ),
    (
        "Memory, share of the limit",
        "percentunit",
        {"{{instance}}": share_of_limit("packhorse_memory_bytes", "packhorse_memory_limit_bytes")},
    ),
    ("Processors kept busy", "short", {"{{instance}}": rate("packhorse_processor_seconds_total")}),
    (
        "Files and connections, share of the limit",
        "percentunit",
        {"{{instance}}": share_of_limit("packhorse_open_files", "packhorse_open_files_limit")},
    ),
    (
        "Connections",
        "short",
        {
            "{{instance}}": f"packhorse_connections{JOB}",
            "{{instance}}, no request": f"packhorse_connections_without_request{JOB}",
        },
    ),
    (
        "Bytes a second that belong to no request",
        "Bps",
        {"{{instance}}": rate("packhorse_bytes_without_request_total")},
    ),
    ("Files that cannot be used", "short", {"{{instance}} {{kind}} {{name}}": f"packhorse_unusable_files{JOB}"}),
)
"""Title, unit, and legend → query of each panel, in rows of three."""


def asked_for(query: str) -> set[str]:
    """The metrics that a query names, as `metric_names` calls them."""
    found = set(re.findall(r"\b(?:packhorse|grpc)_[a-z_]+\b(?=\{)", query))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def panel(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    """A panel as Grafana keeps it; raises LookupError for a metric that the server lacks."""
    for query in queries.values():
        if not asked_for(query) or asked_for(query) - metric_names():
            raise LookupError(f"the panel {title!r} asks for a metric that the server lacks: {query}")
    row, column = divmod(number, IN_A_ROW)
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(queries.items())
        ],
    }


def text_of_dashboard() -> str:
    """The file."""
    dashboard = {
        "title": "Packhorse",
        "uid": "packhorse",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [panel(number, *each) for number, each in enumerate(PANELS)],
    }
    return json.dumps(dashboard, indent=2) + "\n"


def main() -> None:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a file is stale")
    dashboard, alerts = text_of_dashboard(), ALERTS.read_text(encoding="utf-8")
    texts = {FILE: dashboard, IN_CHART / "dashboard.json": dashboard, IN_CHART / "alerts.yml": alerts}
    if not parser.parse_args().check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    elif stale := [path.name for path, text in texts.items() if path.read_text(encoding="utf-8") != text]:
        sys.exit(f"stale: {', '.join(stale)}; run `make reference` and commit what it writes")


if __name__ == "__main__":
    main()
