"""A small writer of SVG: boxes, lines and text. What is written is escaped; colours suit light and dark pages."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

# Okabe and Ito's palette, which stays apart for colour-blind readers.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00")
EMPTY, WASTED, INK = "#f4f4f4", "#c8c8c8", "#222222"


class Drawing:
    """Coordinates in pixels from the top left. It grows to hold what is drawn."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._width = self._height = 0.0

    def box(self, x: float, y: float, width: float, height: float, fill: str, note: str = "") -> None:
        """A filled rectangle; `note` shows when it is pointed at."""
        shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill={quoteattr(fill)} stroke="#666"'
        self._parts.append(f"{shape}><title>{escape(note)}</title></rect>" if note else f"{shape}/>")
        self._grow(x + width, y + height)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}"/>')
        self._grow(max(x1, x2), max(y1, y2))

    def text(self, x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> None:
        """`y` is the base line; `anchor` is start, middle or end."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'
        )
        width = 0.6 * size * len(words)  # of a wide letter; only the page's size depends on it
        self._grow(x + {"start": width, "middle": width / 2, "end": 0.0}[anchor], y + 4)

    def document(self) -> str:
        width, height = self._width + 10, self._height + 10
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="sans-serif" role="img"><title>{escape(self._title)}</title>'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(self._parts)}</svg>\n'
        )

    def _grow(self, x: float, y: float) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)
