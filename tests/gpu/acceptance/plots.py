"""Small SVG plots: lines over prompt lengths, and bars side by side. Legible on light and dark pages."""

import math
from xml.sax.saxutils import escape

# Okabe and Ito's colours, which colour-blind people tell apart; lighter where the page is dark. Shapes of markers differ too.
COLOURS = [("#0072B2", "#56B4E9"), ("#D55E00", "#E69F00"), ("#009E73", "#2FCBA0"), ("#8C5A7B", "#CC79A7"), ("#444444", "#BBBBBB")]
PANEL_WIDTH, PANEL_HEIGHT = 270, 210
LEFT, TOP, BOTTOM, GAP = 58, 62, 46, 74


def style():
    rules = [
        "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.axis{stroke:#57606a;stroke-width:1}",
        ".grid{stroke:#d0d7de;stroke-width:.6}.mark{stroke:#57606a;stroke-width:1.2;stroke-dasharray:5 3}.line{fill:none;stroke-width:2}",
    ]
    rules += [f".f{i}{{fill:{light}}}.s{i}{{stroke:{light}}}" for i, (light, _) in enumerate(COLOURS)]
    dark = ["text{fill:#e6edf3}.axis,.mark{stroke:#9198a1}.grid{stroke:#3d444d}"]
    dark += [f".f{i}{{fill:{dark_colour}}}.s{i}{{stroke:{dark_colour}}}" for i, (_, dark_colour) in enumerate(COLOURS)]
    return "".join(rules) + "@media (prefers-color-scheme:dark){" + "".join(dark) + "}"


def figure(title, panels, series):
    """Panels beside each other under one legend. A panel is a function that draws itself at the origin given."""
    width = LEFT + len(panels) * PANEL_WIDTH + (len(panels) - 1) * GAP + 16
    height = TOP + PANEL_HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{style()}</style>", *legend(series),
    ]
    for index, panel in enumerate(panels):
        parts += panel(LEFT + index * (PANEL_WIDTH + GAP), TOP)
    return "\n".join([*parts, "</svg>\n"])


def legend(series):
    x, parts = LEFT, []
    for index, name in enumerate(series):
        parts += [marker(index, x + 5, 16), text(x + 14, 20, name)]
        x += 30 + 7.2 * len(name)
    return parts


def bars(title, unit, groups, series, mark=None):
    """Bars in groups: `groups` are (name, {series: value}). `mark` is a dashed line: (value, what it is)."""
    values = [value for _, found in groups for value in found.values()]
    top = 1.08 * max([*values, mark[0] if mark else 0], default=1)

    def draw(x, y):
        ticks = linear_ticks(0, top)
        height = lambda value: PANEL_HEIGHT * value / top
        parts = axes(x, y, title, unit, [(tick, y + PANEL_HEIGHT - height(tick)) for tick in ticks])
        group_width = PANEL_WIDTH / max(len(groups), 1)
        bar_width = min(0.8 * group_width / max(len(series), 1), 34)
        for index, (name, found) in enumerate(groups):
            middle = x + (index + 0.5) * group_width
            parts.append(text(middle, y + PANEL_HEIGHT + 17, name, "middle"))
            start = middle - bar_width * len(series) / 2
            for place, one in enumerate(series):
                if (value := found.get(one)) is not None:
                    parts.append(
                        f'<rect class="f{place}" x="{start + place * bar_width + 1:.1f}" y="{y + PANEL_HEIGHT - height(value):.1f}" '
                        f'width="{bar_width - 2:.1f}" height="{height(value):.1f}"><title>{escape(one)}, {escape(name)}: '
                        f"{value:.3g} {escape(unit)}</title></rect>"
                    )
        if mark:
            at = y + PANEL_HEIGHT - height(mark[0])
            parts.append(f'<line class="mark" x1="{x}" y1="{at:.1f}" x2="{x + PANEL_WIDTH}" y2="{at:.1f}"/>')
            parts.append(text(x + 3, at - 4, mark[1]))
        return [*parts, text(x + PANEL_WIDTH / 2, y + PANEL_HEIGHT + 36, "prompt, tokens", "middle")]

    return draw


def lines(title, unit, lengths, found, series, logarithmic=False):
    """A line for each series: `found` is {series: {length: value}}; lengths are spaced by their logarithm."""
    values = [value for points in found.values() for value in points.values()]
    low, high = (min(values, default=1) / 1.3, 1.3 * max(values, default=1)) if logarithmic else (0, 1.08 * max(values, default=1))

    def draw(x, y):
        scale = math.log if logarithmic else float
        share = lambda value: (scale(value) - scale(low)) / (scale(high) - scale(low))
        at_y = lambda value: y + PANEL_HEIGHT * (1 - share(value))
        span = math.log(lengths[-1] / lengths[0]) or 1
        at_x = lambda length: x + 16 + (PANEL_WIDTH - 32) * math.log(length / lengths[0]) / span
        ticks = logarithmic_ticks(low, high) if logarithmic else linear_ticks(0, high)
        parts = axes(x, y, title, unit, [(tick, at_y(tick)) for tick in ticks])
        parts += [text(at_x(length), y + PANEL_HEIGHT + 17, length_name(length), "middle") for length in lengths]
        for index, one in enumerate(series):
            points = [(at_x(length), at_y(value), value) for length, value in sorted(found.get(one, {}).items())]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in points)
            parts.append(f'<polyline class="line s{index}" points="{path}"/>')
            parts += [marker(index, px, py, f"{one}: {value:.3g} {unit}") for px, py, value in points]
        return [*parts, text(x + PANEL_WIDTH / 2, y + PANEL_HEIGHT + 36, "prompt, tokens", "middle")]

    return draw


def axes(x, y, title, unit, ticks):
    parts = [text(x, y - 14, f"{title}, {unit}" if unit else title, kind="title")]
    for value, at in ticks:
        parts.append(f'<line class="grid" x1="{x}" y1="{at:.1f}" x2="{x + PANEL_WIDTH}" y2="{at:.1f}"/>')
        parts.append(text(x - 7, at + 4, f"{value:g}", "end"))
    bottom = y + PANEL_HEIGHT
    return [*parts, f'<line class="axis" x1="{x}" y1="{bottom}" x2="{x + PANEL_WIDTH}" y2="{bottom}"/>']


def marker(index, x, y, words=""):
    shapes = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"', f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5 9h-10z"', f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"',
        f'<path d="M{x - 5:.1f} {y - 5:.1f}h10l-5 9z"',
    ]
    return f'{shapes[index % len(shapes)]} class="f{index % len(COLOURS)}"><title>{escape(words)}</title></' + (
        "circle>" if index % 5 == 0 else "rect>" if index % 5 == 1 else "path>")


def text(x, y, words, anchor="start", kind=""):
    return f'<text class="{kind or "label"}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def length_name(length):
    return f"{length // 1024}K" if length % 1024 == 0 else f"{length:,}"


def linear_ticks(low, high):
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def logarithmic_ticks(low, high):
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in every if low <= tick <= high]
