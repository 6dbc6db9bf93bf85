"""Draws docs/pictures/relaxation.svg: what the range of a pre-activation says of a ReLU. Run: python
docs/draw_how.py.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT, UNIT = 220, 190, 40
FONT = "sans-serif"
RELU, BOUND, FILL, AXIS = "#1f4e79", "#b3401e", "#f3d9cf", "#777777"


def main() -> None:
    """Three panels side by side."""
    panels = (
        ("inactive: U <= 0, so x = 0", -2.0, -0.5),
        ("active: L >= 0, so x = y", 0.4, 1.9),
        ("unstable: between two lines", -1.5, 1.8),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * WIDTH} {HEIGHT}" font-family="{FONT}">',
        "<title>A ReLU over the range of its pre-activation: inactive, active, unstable</title>",
        f'<rect width="{3 * WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for at, (title, low, high) in enumerate(panels):
        parts += _panel(at * WIDTH, title, low, high)
    parts.append("</svg>")
    target = Path(__file__).parent / "pictures" / "relaxation.svg"
    target.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _panel(left: float, title: str, low: float, high: float) -> list[str]:
    def place(y: float, x: float) -> str:
        return f"{left + WIDTH / 2 + UNIT * y:.1f},{HEIGHT - 55 - UNIT * x:.1f}"

    def line(points: list[tuple[float, float]], colour: str, width: float, dash: str = "") -> str:
        drawn = " ".join(place(*point) for point in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'

    parts = [
        f'<text x="{left + WIDTH / 2}" y="20" text-anchor="middle" font-size="13">{escape(title)}</text>'
    ]
    if low < 0 < high:
        corners = " ".join(place(*point) for point in ((low, 0.0), (0.0, 0.0), (high, high)))
        parts.append(f'<polygon points="{corners}" fill="{FILL}"/>')
    parts.append(line([(-2.3, 0), (2.3, 0)], AXIS, 1))
    parts.append(line([(0, -0.2), (0, 2.2)], AXIS, 1))
    inside = [(low, max(0.0, low)), *([(0.0, 0.0)] if low < 0 < high else []), (high, max(0.0, high))]
    if low < 0 < high:
        parts.append(line([(low, 0.0), (high, high)], BOUND, 2))
        parts.append(line([(low, 0.45 * low), (high, 0.45 * high)], BOUND, 2, "5 3"))
    parts.append(line(inside, RELU, 4))
    for end, name in ((low, "L"), (high, "U")):
        x, y = place(end, 0).split(",")
        parts.append(f'<line x1="{x}" y1="{float(y) - 4}" x2="{x}" y2="{float(y) + 4}" stroke="{AXIS}"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT - 36}" text-anchor="middle" font-size="12">{name}</text>')
    return parts


if __name__ == "__main__":
    main()
