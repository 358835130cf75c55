"""The end of a test run says what was left out, and which command would let it run."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skips grouped by reason; a skip's reason names the command that enables it."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    if not reasons:
        terminalreporter.line("nothing was skipped")
        return
    terminalreporter.section("skipped, and what enables it")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} tests: {reason}")
