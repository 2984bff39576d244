"""A plot in SVG, written by hand: steps done above, peers in the run below, both over hours.

Owns shapes and colours. Must not know what is plotted.
"""

from dataclasses import dataclass

WIDTH, LEFT, RIGHT = 800, 70, 20
UPPER = (40, 340)
LOWER = (390, 480)
"""Upper and lower edge of each of the two pictures."""
HEIGHT = 530

COLOURS = {"ideal": "#999999", "ours": "#1b7837", "other": "#b2182b"}
TICKS = 5


@dataclass(frozen=True)
class Curve:
    """Points in the order in which they are joined."""

    name: str
    colour: str
    points: list[tuple[float, float]]


def draw_plot(curves: list[Curve], sizes: Curve, hours: float) -> str:
    """The document."""
    most = max(y for curve in curves for _, y in curve.points)
    upper = _Picture(UPPER, hours, (0.0, most))
    heads = [y for _, y in sizes.points]
    lower = _Picture(LOWER, hours, (min(heads) - 1.0, max(heads) + 1.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *upper.frame("steps that count"),
        *(upper.line(curve) for curve in curves),
        *_legend(curves),
        *lower.frame("peers in the run"),
        lower.line(_stairs(sizes, hours)),
        _text(f"{(LEFT + WIDTH - RIGHT) / 2:g}", f"{HEIGHT - 10}", "hours", "middle"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Picture:
    def __init__(self, edges: tuple[int, int], hours: float, span: tuple[float, float]) -> None:
        self._top, self._bottom = edges
        self._hours = hours
        self._least, self._most = span

    def place(self, x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / self._hours
        down = self._bottom - (self._bottom - self._top) * (y - self._least) / (self._most - self._least)
        return f"{across:.1f},{down:.1f}"

    def line(self, curve: Curve) -> str:
        dashes = ' stroke-dasharray="6 4"' if curve.colour == "ideal" else ""
        points = " ".join(self.place(*point) for point in curve.points)
        return f'<polyline fill="none" stroke="{COLOURS[curve.colour]}" stroke-width="2"{dashes} points="{points}"/>'

    def frame(self, title: str) -> list[str]:
        height = self._bottom - self._top
        parts = [
            f'<rect x="{LEFT}" y="{self._top}" width="{WIDTH - LEFT - RIGHT}" height="{height}" fill="none" '
            'stroke="#444444"/>',
            _text(f"{LEFT}", f"{self._top - 8}", title, "start"),
        ]
        for hour in range(int(self._hours) + 1):
            across = self.place(hour, self._least).split(",")[0]
            parts.append(_text(across, f"{self._bottom + 18}", f"{hour}", "middle"))
        step = _round_step((self._most - self._least) / (TICKS if height > 200 else 2))
        mark = step * -(-self._least // step)
        while mark <= self._most:
            down = self.place(0.0, mark).split(",")[1]
            parts.append(f'<path d="M{LEFT} {down}h{WIDTH - LEFT - RIGHT}" stroke="#dddddd"/>')
            parts.append(_text(f"{LEFT - 8}", f"{float(down) + 4:.1f}", f"{mark:g}", "end"))
            mark += step
        return parts


def _round_step(least: float) -> float:
    """The next 1, 2 or 5 with zeros."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if factor * step >= least:
                return factor * step
        step *= 10


def _stairs(curve: Curve, until: float) -> Curve:
    """A number holds until the next one."""
    points = [curve.points[0]]
    for at, number in [*curve.points[1:], (until, curve.points[-1][1])]:
        points += [(at, points[-1][1]), (at, number)]
    return Curve(curve.name, curve.colour, points)


def _legend(curves: list[Curve]) -> list[str]:
    parts = []
    for row, curve in enumerate(curves):
        down = UPPER[0] + 22 + 20 * row
        parts.append(f'<path d="M{LEFT + 14} {down - 4}h26" stroke="{COLOURS[curve.colour]}" stroke-width="3"/>')
        parts.append(_text(f"{LEFT + 48}", f"{down}", curve.name, "start"))
    return parts


def _text(x: str, y: str, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
