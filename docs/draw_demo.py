"""Draws docs/demo.svg: the shipped network before and after, each bar to scale. Run: python
docs/draw_demo.py.
"""

from __future__ import annotations

from pathlib import Path

import relutrim

COLOURS = {
    "unstable": "#4c78a8",
    "active": "#54a24b",
    "inactive": "#bab0ac",
    "carriers": "#e45756",
    "plain": "#79706e",
}
SCALE = 2.2


def main() -> None:
    """Compress the shipped network and draw both."""
    result = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1))
    layers = result.stability.layers
    before = [
        {word: layer.count(relutrim.Verdict[word.upper()]) for word in ("unstable", "active", "inactive")}
        for layer in layers
    ]
    after = [
        {"unstable": counts["unstable"], "carriers": width - counts["unstable"]}
        for counts, width in zip(before, result.network.widths[1:-1], strict=True)
    ]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 330" font-family="sans-serif">',
        "<title>Bars for the layers of the shipped network before and after compression</title>",
        '<rect width="720" height="330" fill="white"/>',
    ]
    for x, title, counts, network in (
        (40, "before", before, result.original),
        (400, "after", after, result.network),
    ):
        text = f"{title}: {network.connections:,} connections"
        parts.append(f'<text x="{x}" y="28" font-weight="bold">{text}</text>')
        parts += _network(x, counts, network.widths[0], network.widths[-1])
    for i, word in enumerate(("unstable", "active", "inactive", "carriers")):
        parts.append(f'<rect x="{40 + 120 * i}" y="302" width="14" height="14" fill="{COLOURS[word]}"/>')
        parts.append(f'<text x="{60 + 120 * i}" y="314">{word}</text>')
    parts.append("</svg>")
    Path(__file__).with_name("demo.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _network(x: int, layers: list[dict[str, int]], inputs: int, outputs: int) -> list[str]:
    parts = []
    columns = [{"plain": 100}, *layers, {"plain": outputs}]
    labels = [f"{inputs} inputs", *(str(sum(layer.values())) for layer in layers), f"{outputs} outputs"]
    for i, (column, label) in enumerate(zip(columns, labels, strict=True)):
        left, bottom = x + 75 * i, 270.0
        for word, count in column.items():
            height = SCALE * count
            bottom -= height
            if count:
                place = f'x="{left}" y="{bottom:.1f}" width="44" height="{height:.1f}"'
                parts.append(f'<rect {place} fill="{COLOURS[word]}"/>')
        parts.append(f'<text x="{left + 22}" y="288" text-anchor="middle" font-size="12">{label}</text>')
    return parts


if __name__ == "__main__":
    main()
