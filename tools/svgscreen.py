"""A terminal's screen as an SVG picture, and the text of such a picture.

Only what nsm's programs print is understood: text, bold, reverse and the sixteen colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 14
FOREGROUND, BACKGROUND = "#d8dee9", "#1f2430"
PALETTE = (
    "#8b95a7", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
)  # fmt: skip
SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")
LINE = re.compile(r"<text [^>]*>(.*?)</text>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Style:
    """The look of some characters."""

    colour: str = FOREGROUND
    bold: bool = False
    reverse: bool = False

    def after(self, code: int) -> Style:
        """The style after one number of a colour sequence (ECMA-48, SGR)."""
        match code:
            case 0:
                return Style()
            case 1:
                return replace(self, bold=True)
            case 22:
                return replace(self, bold=False)
            case 7 | 27:
                return replace(self, reverse=code == 7)
            case 39:
                return replace(self, colour=FOREGROUND)
            case _ if 30 <= code <= 37 or 90 <= code <= 97:
                return replace(self, colour=PALETTE[code % 10])
            case _:
                return self


def draw(screen: str, *, columns: int, times_s: Sequence[float] = (), again_s: float = 0) -> str:
    """An SVG picture of a screen, with colour sequences.

    Args:
        columns: its width.
        times_s: when each line appears, 0 for those that are always there. Without it, and for
            readers who want no motion, all lines are there.
        again_s: when the picture begins again.
    """
    lines = screen.rstrip("\n").split("\n")
    width = round(columns * CELL_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    fonts = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}>',
        *(_motion(times_s, again_s) if times_s else ()),
        f'<rect {size} rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{fonts}" font-size="14">',
    ]
    style = Style()
    for number, line in enumerate(lines):
        runs, style = _runs(line, style)
        y = MARGIN + number * LINE_HEIGHT
        column = 0
        spans: list[str] = []
        for text, look in runs:
            x = MARGIN + column * CELL_WIDTH
            if look.reverse:
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{len(text) * CELL_WIDTH:.1f}" '
                    f'height="{LINE_HEIGHT}" fill="{look.colour}"/>'
                )
            spans.append(_span(text, look, x))
            column += len(text)
        step = f' class="{_step(times_s[number])}"' if times_s and times_s[number] else ""
        parts.append(
            f'<text{step} y="{y + LINE_HEIGHT - 5}" xml:space="preserve">{"".join(spans)}</text>'
        )
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _motion(times_s: Sequence[float], again_s: float) -> Iterator[str]:
    """A style sheet by which lines appear one after another."""
    yield "<style>"
    for time_s in sorted(set(times_s) - {0.0}):
        name = _step(time_s)
        yield f".{name} {{ animation: {name} {again_s:.1f}s step-end infinite }}"
        shown = 100 * time_s / again_s
        yield f"@keyframes {name} {{ 0% {{ opacity: 0 }} {shown:.2f}% {{ opacity: 1 }} }}"
    yield "@media (prefers-reduced-motion: reduce) { text { animation: none !important } }"
    yield "</style>"


def _step(time_s: float) -> str:
    return f"t{round(time_s * 1000)}"


def text_of(picture: str) -> str:
    """The text that a picture shows."""
    lines = [unescape(re.sub(r"<[^>]*>", "", line)) for line in LINE.findall(picture)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def plain(screen: str) -> str:
    """A screen without colour sequences."""
    return SEQUENCE.sub("", screen)


def _runs(line: str, style: Style) -> tuple[list[tuple[str, Style]], Style]:
    """The pieces of a line, each with its style, and the style after it."""
    runs: list[tuple[str, Style]] = []
    for text, codes in _pieces(line):
        if text:
            runs.append((text, style))
        for code in codes:
            style = style.after(code)
    return runs, style


def _pieces(line: str) -> Iterator[tuple[str, list[int]]]:
    """Text, and the numbers of the sequence after it."""
    begin = 0
    for sequence in SEQUENCE.finditer(line):
        codes = [int(code or 0) for code in sequence[1].split(";")]
        yield line[begin : sequence.start()], codes
        begin = sequence.end()
    yield line[begin:], []


def _span(text: str, look: Style, x: float) -> str:
    colour = BACKGROUND if look.reverse else look.colour
    weight = ' font-weight="bold"' if look.bold else ""
    # The length keeps columns straight whatever font there is.
    length = f' textLength="{len(text) * CELL_WIDTH:.1f}"' if text.strip() else ""
    return f'<tspan x="{x:.1f}" fill="{colour}"{weight}{length}>{escape(text)}</tspan>'
