"""`look`: the report of a running engine on one screen."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.observe.look import look
from harness.observe.look_report import Check, LookReport, StageRow
from harness.records.errors import UsageError

NAMES = {
    "queue": "queue",
    "kv_cache": "KV cache",
    "kernel": "kernel, host",
    "communication": "communication",
    "batch": "batch shape",
    "config": "model config",
}
STYLES = {"ok": "green", "warn": "bold yellow", "not observable": "dim", "info": ""}
MARKS = {"ok": "✓", "warn": "!", "not observable": "?", "info": "·"}
WIDTH = 100
NAMED = 5  # metrics listed by name before the rest is counted


def look_command(url: str, *, kind: str | None, api_key_env: str | None, seconds: float, as_json: bool) -> int:
    """Print what is found. 0 whatever the stages say: a look judges nothing against a baseline."""
    from harness.plan_engine import base_url

    try:
        address = base_url(url)
    except ValueError as error:
        raise UsageError(f"look: {error}") from None
    report = look(address, kind=kind, api_key=_key(api_key_env), seconds=seconds)
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        render(report, Console())
    return 0


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UsageError(f"the environment variable {name} is not set", mend=f"export {name}=…")
    return key


def render(report: LookReport, console: Console) -> None:
    """A header, six stages, then drift and notes. What the server says is shown as text, never as markup."""
    console.print(_header(report), width=min(console.width, WIDTH))
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(width=len("4 communication"), no_wrap=True)
    table.add_column(width=len("not observable"), no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for number, stage in enumerate(report.stages, start=1):
        _add(table, number, stage)
    console.print(table, width=min(console.width, WIDTH))
    for line in _tail(report):
        console.print(line, width=min(console.width, WIDTH))


def _header(report: LookReport) -> Text:
    version = report.version or "version unknown"
    head = Text.assemble(
        (f"{report.kind} {version}", "bold"), f"  {', '.join(report.models) or 'no model'}  {report.url}\n"
    )
    config = report.config
    parts = [
        _part("block", config["block_size"]),
        _part("KV", config["kv_tokens"], " tokens"),
        _part("context", config["max_model_len"]),
        _part("prefix caching", _on(config["prefix_caching"])),
        _part("scheduler", config["scheduler"]),
        _part("overlap", _on(config["async_loop"])),
        _part("max seqs", config["max_num_seqs"]),
        _part("batch budget", config["max_batched_tokens"]),
    ]
    for line in _filled(parts):
        head.append(line + "\n")
    head.append(f"{report.scrapes} scrapes in {report.watched_s:.1f} s; no load was sent", "dim")
    return head


def _filled(parts: list[str]) -> list[str]:
    """Lines of whole parts, so that a setting and its value stay together."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= WIDTH:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _on(value: object) -> str | None:
    return None if value is None else ("on" if value else "off")


def _part(name: str, value: object, unit: str = "") -> str:
    if value is None:
        return f"{name} ?"
    return f"{name} {value:,}{unit}" if isinstance(value, int) else f"{name} {value}"


def _add(table: Table, number: int, stage: StageRow) -> None:
    """One row a check, what warns first; what cannot be seen shares the last row."""
    shown = sorted((c for c in stage.checks if c.state != "not observable"), key=lambda c: c.state != "warn")
    hidden = [check for check in stage.checks if check.state == "not observable"]
    lines = [_line(check) for check in shown]
    if hidden:
        lines.append(Text.assemble(("? ", "dim"), Text("; ").join(_unseen(check) for check in hidden)))
    for at, line in enumerate(lines):
        name = Text("" if at else f"{number} {NAMES[stage.stage]}", "bold")
        table.add_row(name, Text("" if at else stage.verdict, STYLES[stage.verdict]), line)


def _line(check: Check) -> Text:
    """The check's sentence; why only where it warns, the flag where it would show more."""
    text = Text(f"{MARKS[check.state]} ", STYLES[check.state])
    text.append(check.says)
    if check.state == "warn" and check.why:
        text.append(f" — {check.why}", "yellow")
    if check.flag:
        text.append(f" [{check.flag}]", "cyan")
    return text


def _unseen(check: Check) -> Text:
    text = Text(check.says, "dim")
    if check.flag:
        text.append(f" [{check.flag}]", "cyan")
    return text


def _tail(report: LookReport) -> list[Text]:
    lines = []
    drift = report.drift
    if drift.lacking:
        lines.append(Text(f"drift: the server lacks {_some(drift.lacking)}", "yellow"))
    for old, new in drift.outdated.items():
        lines.append(Text(f"drift: {old} is an old name" + (f" of {new}" if new else ""), "yellow"))
    if drift.unknown:
        lines.append(Text(f"drift: not in the catalogue: {_some(drift.unknown)}", "dim"))
    lines += [Text(f"note: {note}", "dim") for note in report.notes]
    lines.append(Text("✓ passed  ! warns  · not judged  ? not observable [flag that would show it]", "dim"))
    return lines


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more (--json lists them)" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
