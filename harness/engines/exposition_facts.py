"""Single facts out of an exposition text: the labels of an info series, the value of a constant gauge."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def info_labels(text: str | None, name: str) -> dict[str, str]:
    """Labels of the first series called `name`; empty if there is none."""
    for sample_name, labels, _ in _samples(text, name):
        if sample_name == name:
            return labels
    return {}


def gauge(text: str | None, name: str, **labels: str) -> float | None:
    """The largest value among the series called `name` that carry `labels`; None if there is none."""
    values = [
        value
        for sample_name, found, value in _samples(text, name)
        if sample_name == name and labels.items() <= found.items()
    ]
    return max(values, default=None)


def _samples(text: str | None, name: str) -> list[tuple[str, dict[str, str], float]]:
    if not text:
        return []
    # Only the lines that matter are parsed: a whole scrape is hundreds of lines, a fact is one.
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return []
    return [(sample.name, dict(sample.labels), float(sample.value)) for family in families for sample in family.samples]
