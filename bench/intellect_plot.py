"""Three plots one below the other, with one axis of time, in SVG written by hand.

Owns shapes and colours. Must not know how the curves came about.
"""

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 860, 150, 70, 20, 40, 36
COLOURS = {"peers": "#2166ac", "utilisation": "#1b7837", "loss": "#762a83"}
NAMES = {"peers": "peers of a round", "utilisation": "utilisation, %", "loss": "loss"}
MARKS = {"joins": "#7fbf7b", "leaves": "#ef8a62", "killed": "#b2182b"}
PRIME = (83.0, 96.0)
"""PRIME's utilisation, in per cent: across continents, and in one country."""

TICKS = 4


def draw(curves, events):
    """A document: `curves` by name, points of time and value; `events` with their time and what happened."""
    height = TOP + len(curves) * (PANEL + GAP) + 10
    last = max([1.0, *(at for curve in curves.values() for at, _ in curve)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, (kind, colour) in enumerate(MARKS.items()):
        parts.append(f'<path d="M{LEFT + 110 * place} 14v12" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(LEFT + 110 * place + 8, 24, kind, "start"))
    for number, (name, curve) in enumerate(curves.items()):
        parts += _panel(name, curve, TOP + number * (PANEL + GAP), last, events if name == "peers" else [])
    parts.append(_text(WIDTH - RIGHT, height - 8, f"{last:.0f} s", "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name, curve, top, last, events):
    low, high = _span(name, [value for _, value in curve])
    wide = WIDTH - LEFT - RIGHT

    def across(at):
        return LEFT + wide * max(0.0, at) / last

    def down(value):
        return top + PANEL - PANEL * (value - low) / (high - low)

    if name == "utilisation":
        tall = down(PRIME[0]) - down(PRIME[1])
        yield f'<rect x="{LEFT}" y="{down(PRIME[1]):.1f}" width="{wide}" height="{tall:.1f}" fill="#eeeeee"/>'
        yield _text(LEFT + 6, down(PRIME[1]) + 14, "PRIME: 83 to 96 %", "start")
    yield f'<rect x="{LEFT}" y="{top}" width="{wide}" height="{PANEL}" fill="none" stroke="#444444"/>'
    yield _text(LEFT, top - 6, NAMES[name], "start")
    for tick in range(TICKS + 1):
        value = low + (high - low) * tick / TICKS
        yield _text(LEFT - 8, down(value) + 4, f"{value:.3g}", "end")
    for event in events:
        yield f'<path d="M{across(event["at"]):.1f} {top}v12" stroke="{MARKS[event["what"]]}" stroke-width="2"/>'
    line = " ".join(f"{across(at):.1f},{down(value):.1f}" for at, value in curve)
    yield f'<polyline fill="none" stroke="{COLOURS[name]}" stroke-width="2" points="{line}"/>'


def _span(name, values):
    if name == "utilisation":
        return min([80.0, *values]), 100.0
    if name == "peers":
        return 0.0, 16.0
    least, most = min(values, default=0.0), max(values, default=1.0)
    return least, most if most > least else least + 1.0


def _text(x, y, words, anchor):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'
