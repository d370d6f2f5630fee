"""The page of metrics, from what the server registers."""

from reference.markdown import UndocumentedError, cell, page, table


def metrics_page() -> str:
    from packhorse.server.watching.metrics import (
        DATASET_GAUGES,
        FILE_GAUGES,
        RESOURCE_GAUGE,
        RESOURCE_LABELS,
        RESOURCE_MEANING,
        Metrics,
        metric_names,
    )
    from packhorse.server.watching.waiting import WAITING_GAUGE, WAITING_LABELS, WAITING_MEANING

    metrics = Metrics(list)
    facts: dict[str, tuple[str, str, tuple[str, ...]]] = {
        name: ("gauge", meaning, ("dataset",)) for name, (meaning, _) in DATASET_GAUGES.items()
    }
    facts |= {name: ("gauge", meaning, labels) for name, (meaning, labels) in FILE_GAUGES.items()}
    facts[RESOURCE_GAUGE] = ("gauge", RESOURCE_MEANING, RESOURCE_LABELS)
    facts[WAITING_GAUGE] = ("gauge", WAITING_MEANING, WAITING_LABELS)
    for metric in vars(metrics).values():
        if hasattr(metric, "_documentation"):
            suffix = "_total" if metric._type == "counter" else ""
            facts[metric._name + suffix] = (metric._type, metric._documentation, tuple(metric._labelnames))
    missing = metric_names() - {name for name, fact in facts.items() if fact[1]}
    if missing:
        raise UndocumentedError(f"metric {min(missing)} has no description")
    rows = [
        (f"`{name}`", facts[name][0], ", ".join(f"`{label}`" for label in facts[name][2]), cell(facts[name][1]))
        for name in sorted(metric_names())
    ]
    return page(
        "Every metric",
        "`packhorse serve --metrics-listen HOST:PORT` shows them to Prometheus. What to watch: "
        "[Serving](../../deploy/guides/serving.md#metrics).",
        table(("metric", "kind", "labels", "meaning"), rows),
    )
