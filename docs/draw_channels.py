"""Draw the channels per layer of a convolutional network before and after, for docs/cnn.md.

``python docs/draw_channels.py MODEL pictures/channels.svg``: MODEL is one of the shared networks (or any ONNX
file with images of CIFAR-10, normalised as there); it is compressed here, and the picture is of the result.
"""

from __future__ import annotations

import sys
from pathlib import Path

import relutrim

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
HEIGHT, BAR, STEP, TOP = 150, 22, 64, 34
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.before { fill: #d0d7de } .after { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .before { fill: #444c56 } .after { fill: #58a6ff }
}
</style>"""


def main(model: str, picture: str) -> None:
    """Compress the model and draw what is left of its convolutions."""
    domain = relutrim.NormalizedBox(0, 1, mean=MEAN, std=STD)
    result = relutrim.compress(model, domain)
    before, after = result.original, result.network
    layers = [relu.name for relu in before.relus if len(before.shapes[relu.name]) > 1]
    counts = [
        (before.shapes[name][0], after.shapes[name][0] if name in after.shapes else 0) for name in layers
    ]
    Path(picture).write_text(_drawn(counts), encoding="utf-8")
    print(result)


def _drawn(counts: list[tuple[int, int]]) -> str:
    """Two bars for each layer, all to one scale."""
    scale = HEIGHT / max(old for old, _ in counts)
    width, base = 24 + STEP * len(counts), TOP + HEIGHT
    words = ", ".join(f"{old} to {new}" for old, new in counts)
    label = f"Channels per convolution before and after: {words}"
    size = f"0 0 {width} {base + 46}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{label}">',
        STYLE,
        '<rect class="before" x="12" y="4" width="12" height="12"/>',
        '<text x="30" y="14">channels before</text>',
        '<rect class="after" x="146" y="4" width="12" height="12"/>',
        '<text x="164" y="14">after</text>',
    ]
    for number, (old, new) in enumerate(counts):
        x = 12 + STEP * number
        for kind, count, at in (("before", old, x), ("after", new, x + BAR + 2)):
            high = scale * count
            parts.append(
                f'<rect class="{kind}" x="{at}" y="{base - high:.1f}" width="{BAR}" height="{high:.1f}"/>'
                f'<text x="{at + BAR / 2}" y="{base - high - 4:.1f}" text-anchor="middle">{count}</text>'
            )
        parts.append(f'<text x="{x + BAR + 1}" y="{base + 18}" text-anchor="middle">conv {number + 1}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main(*sys.argv[1:])
