"""Charts as SVG text: distributions side by side, and the run over time with the engine's state under the requests."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from reports.cell import Floats
from reports.join import Joined
from reports.render import words
from reports.report import CellReport

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart with any colour vision
MOST_REQUESTS = 400  # more lines than this are a grey area, not a picture
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, and it takes the page's font
    "text.parse_math": False,  # names may hold a dollar sign
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@contextmanager
def _figure(
    rows: int, columns: int, size: tuple[float, float], salt: str, spacing: dict[str, Any], **options: Any
) -> Iterator[Any]:
    """A figure and its axes under our style, without any global state of pyplot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=size)
        # Fixed margins: an automatic layout draws everything twice, which is half of the time of a report.
        wide, high = size
        margins = {"left": 0.6 / wide, "right": 1 - 0.1 / wide, "bottom": 0.45 / high, "top": 1 - 0.25 / high}
        yield figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=margins | spacing, **options)


def _svg(figure: Any, name: str) -> str:
    """The drawing alone, without XML declaration and dates; ids are made unique so that drawings can share a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', text)
    return re.sub(r"url\(#", f"url(#{name}-", text)


def distributions(cells: Sequence[CellReport], name: str) -> str:
    """Share of requests (of gaps) at or below each value: TTFT, TPOT and chunk gap, one line a cell. "" if empty."""
    with _figure(1, 3, (9.6, 2.8), name, {"wspace": 0.18}) as (figure, axes):
        drawn = False
        for place, metric in enumerate(("ttft", "tpot", "chunk_gap")):
            axis = axes[0][place]
            axis.set_xlabel(f"{cells[0].measured[metric].metric.name}, ms")
            axis.set_ylim(0, 1.02)
            for number, cell in enumerate(cells):
                values = np.sort(cell.measured[metric].samples.values) * 1e3
                if len(values):
                    drawn = True
                    _steps(axis, values, _label(cell, cells), COLOURS[number % len(COLOURS)])
        axes[0][0].set_ylabel("share at or below")
        if not drawn:
            return ""
        axes[0][0].legend(frameon=False, fontsize=8)
        return _svg(figure, name)


def _label(cell: CellReport, cells: Sequence[CellReport]) -> str:
    several = sum(other.engine == cell.engine for other in cells) > 1
    # A leading underscore would hide the label from the legend.
    return " " + words.plain(cell.engine) + (f" r{cell.cell.manifest.repeat}" if several else "")


def _steps(axis: Any, values: Floats, label: str, colour: str) -> None:
    share = np.arange(1, len(values) + 1) / len(values)
    if len(values) > 2000:  # a step of half a pixel is enough
        keep = np.unique(np.linspace(0, len(values) - 1, 2000).astype(int))
        values, share = values[keep], share[keep]
    axis.step(
        np.concatenate([[values[0]], values]), np.concatenate([[0.0], share]), where="post", color=colour, label=label
    )
    if values[-1] > 20 * values[0] > 0:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())


def over_time(cell: CellReport, name: str) -> str:
    """Requests, waiting and running, KV usage, hit rate and tokens per second on one time axis. "" if there is none."""
    joined = cell.joined
    if joined is None:
        return ""
    spacing = {"hspace": 0.12, "height_ratios": (2.2, 1, 1, 1)}
    with _figure(4, 1, (9.6, 7.2), name, spacing, sharex=True) as (figure, axes):
        _requests(axes[0][0], cell)
        _queue(axes[1][0], joined)
        _cache(axes[2][0], joined)
        _tokens(axes[3][0], joined)
        axes[3][0].set_xlabel("seconds since the measured load began")
        for row in axes:
            for finding in cell.tails[:1]:
                if finding.begin is not None and finding.end is not None:
                    row[0].axvspan(finding.begin, finding.end, color="#d55e00", alpha=0.12, lw=0)
        return _svg(figure, name)


def _requests(axis: Any, cell: CellReport) -> None:
    """A line per request from send to end: before the first token pale, after it strong; failures red."""
    rows = cell.cell.requests
    sent = np.flatnonzero(np.isfinite(rows["t_sent"]))
    step = max(1, -(-len(sent) // MOST_REQUESTS))
    shown = sent[::step]
    begin, first, done = rows["t_sent"][shown], rows["t_first_token"][shown], rows["t_done"][shown]
    height = np.arange(len(shown))
    warm = rows["phase"][shown] == "warmup"
    bad = ~np.isin(rows["status"][shown], ("ok",))
    split = np.where(np.isfinite(first), first, done)
    axis.hlines(height, begin, split, color="#9ecae1", lw=1)
    answered = ~bad & ~warm
    axis.hlines(height[answered], split[answered], done[answered], color=COLOURS[0], lw=1)
    axis.hlines(height[warm & ~bad], split[warm & ~bad], done[warm & ~bad], color="#999999", lw=1)
    axis.hlines(height[bad], begin[bad], done[bad], color="#cc0000", lw=1.4)
    axis.set_ylabel("requests" if step == 1 else f"requests (1 of {step})")
    axis.set_yticks([])
    axis.set_title("pale: to the first token; strong: answer; grey: warm-up; red: not answered", fontsize=8, loc="left")


def _queue(axis: Any, joined: Joined) -> None:
    _line(axis, joined, joined.engine["queue_depth"], "waiting", COLOURS[1])
    _line(axis, joined, joined.engine["running"], "running", COLOURS[2])
    axis.step(
        joined.middle, joined.client["in_flight"], where="mid", color="#555555", lw=0.8, label="in flight (client)"
    )
    _finish(axis, "requests")


def _cache(axis: Any, joined: Joined) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = joined.engine["prefix_hit_tokens"] / joined.engine["prefix_query_tokens"]
    _line(axis, joined, 100 * joined.engine["kv_usage"], "KV usage", COLOURS[0])
    _line(axis, joined, 100 * joined.engine["kv_evictable"], "KV evictable", COLOURS[5])
    rate = np.where(np.isfinite(rate), rate, np.nan)
    if np.isfinite(rate).any():
        axis.plot(joined.middle, 100 * rate, ".", color=COLOURS[3], ms=4, label="hit rate of the bin")
    axis.set_ylim(-3, 103)
    _finish(axis, "%")


def _tokens(axis: Any, joined: Joined) -> None:
    client = joined.client["output_tokens"] / joined.width
    axis.step(joined.middle, client, where="mid", color=COLOURS[0], lw=1, label="output tokens/s (client)")
    _line(axis, joined, joined.engine["output_tokens"] / joined.width, "output tokens/s (engine)", COLOURS[1])
    _finish(axis, "tokens/s")


def _line(axis: Any, joined: Joined, values: Floats, label: str, colour: str) -> None:
    if np.isfinite(values).any():
        axis.step(joined.middle, values, where="mid", color=colour, lw=1.2, label=label)


def _finish(axis: Any, label: str) -> None:
    axis.set_ylabel(label)
    handles, _ = axis.get_legend_handles_labels()
    if handles:
        axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    else:
        axis.text(0.5, 0.5, "not observable", transform=axis.transAxes, ha="center", color="#777777")
