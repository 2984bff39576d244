"""Curves in SVG, written by hand.

Owns shapes and colours. Must not know what is plotted.
"""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 890, 460, 60, 300, 30, 50
COLOURS = ["#777777", "#000000", "#1b7837", "#7fbf7b", "#2166ac", "#67a9cf", "#b2182b", "#ef8a62", "#762a83", "#af8dc3"]
TICKS = 5


def draw(curves, across, up):
    """A document with one line for each curve, by its name."""
    points = [point for curve in curves.values() for point in curve]
    spans = [_span([point[axis] for point in points] or [0.0, 1.0]) for axis in (0, 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_frame(spans, across, up),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join("{:.1f},{:.1f}".format(*_place(point, spans)) for point in curve)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        down = TOP + 16 + 20 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {down - 4}h24" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(WIDTH - RIGHT + 42, down, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _span(values):
    least, most = min(values), max(values)
    return least, most if most > least else least + 1.0


def _place(point, spans):
    (left, right), (low, high) = spans
    x = LEFT + (WIDTH - LEFT - RIGHT) * (point[0] - left) / (right - left)
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (point[1] - low) / (high - low)
    return x, y


def _frame(spans, across, up):
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    yield f'<rect x="{LEFT}" y="{TOP}" width="{wide}" height="{high}" fill="none" stroke="#444444"/>'
    for tick in range(TICKS + 1):
        x, y = (span[0] + (span[1] - span[0]) * tick / TICKS for span in spans)
        at, down = _place((x, y), spans)
        yield f'<path d="M{LEFT} {down:.1f}h{wide}" stroke="#dddddd"/>'
        yield _text(round(at), HEIGHT - BOTTOM + 18, f"{x:.0f}", "middle")
        yield _text(LEFT - 8, round(down) + 4, f"{y:.2f}", "end")
    yield _text(LEFT + wide // 2, HEIGHT - 10, across, "middle")
    yield _text(LEFT, TOP - 10, up, "start")


def _text(x, y, words, anchor):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
