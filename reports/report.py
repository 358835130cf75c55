"""What a report holds before anybody prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.records.judgements import Expected, Stage, Validity, Verdict
from reports.cell import Cell
from reports.client_error import ClientError
from reports.findings import Finding
from reports.join import Joined
from reports.metrics import Measured
from reports.reconcile import Line
from reports.series import Signals


@dataclass(frozen=True)
class CellReport:
    """Everything that was worked out about one cell."""

    cell: Cell
    signals: Signals
    measured: dict[str, Measured]
    error: ClientError
    lines: Sequence[Line]
    validity: Validity
    expected: Expected
    joined: Joined | None
    tails: Sequence[Finding]
    stages: Sequence[Stage]

    @property
    def engine(self) -> str:
        return self.cell.manifest.engine.name

    @property
    def workload(self) -> str:
        return self.cell.manifest.workload.name


@dataclass(frozen=True)
class RunReport:
    """A run or a single cell. `verdict` is what verdict.json holds; `three` are the lines that no other tool prints."""

    path: Path
    cells: Sequence[CellReport]
    verdict: Verdict
    three: Sequence[str] = field(default_factory=tuple)

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    @property
    def html(self) -> Path:
        return self.path / "report.html"

    @property
    def markdown(self) -> Path:
        return self.path / "report.md"

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(cell.workload for cell in self.cells))

    @property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(cell.engine for cell in self.cells))

    def of(self, workload: str, engine: str) -> list[CellReport]:
        """The repeats of one engine under one workload."""
        return [cell for cell in self.cells if cell.workload == workload and cell.engine == engine]
