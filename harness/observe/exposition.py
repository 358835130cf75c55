"""Prometheus exposition text as samples; whatever a server sends, it ends here as rows or as one typed error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from harness.records.errors import InfrastructureError


class ExpositionError(InfrastructureError):
    """A body that is no exposition text."""


@dataclass(frozen=True)
class Sample:
    metric: str  # name on the wire: with _total, _bucket, _sum or _count
    labels: Mapping[str, str]
    value: float

    @property
    def labels_json(self) -> str:
        """JSON object with sorted keys, as server.parquet keeps labels."""
        return json.dumps(dict(sorted(self.labels.items())), separators=(",", ":"), ensure_ascii=False)


def parse(body: bytes) -> list[Sample]:
    """Every sample of a body, in its order. ExpositionError if a line is none.

    OpenMetrics is read line by line like the older text (`# EOF` and exemplars are dropped); a body that was cut loses
    its last, unfinished line.
    """
    if not body:
        return []
    text = body.decode("utf-8", "replace")
    lines = text.splitlines()
    if not text.endswith("\n"):
        lines = lines[:-1]
    samples = [line.split(" # {")[0] for line in lines if line and not line.startswith("#")]
    try:
        return list(_samples("\n".join(samples) + "\n"))
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise ExpositionError(f"the metrics page is no exposition text: {error}", mend="check the URL") from None


def _samples(text: str) -> Iterator[Sample]:
    """Without TYPE lines every series is a family of its own, so names stay as they are on the wire."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Sample(sample.name, dict(sample.labels), float(sample.value))
