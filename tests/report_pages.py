"""Pages to look at: a parser that insists on tidy HTML, and networks that make interesting reports."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np

from relutrim.graph import Convolution, Linear, Network, Node, Output, Port, Relu, Reshape
from rewriting import linear

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onfocus='alert(1)",
    "</script><script>alert(1)</script>",
    "</title></style><!--",
    "{{ 7 * 7 }}{% raw %}",
    "a name\nin two lines\x1b[1m \u202e",
    "&lt;b&gt;&amp;",
    "http://example.com/",
    "long" * 500,
)


class Page(HTMLParser):
    """What a page consists of. Elements that are left open, or closed by another's end, are an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.inside.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open[-1]][-1] += data
            if self.open[-1] not in ("script", "style"):
                self.words.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attrs in self.elements for key, value in attrs.items() if key == name]

    def json(self, name: str) -> Any:
        """The JSON in the element with an id."""
        scripts = [attrs for tag, attrs in self.elements if tag == "script"]
        at = [attrs.get("id") for attrs in scripts].index(name)
        return json.loads(self.inside["script"][at])

    def data(self) -> set[float]:
        """The exact numbers behind those that are shown shortened."""
        return {float(attrs["value"] or "") for tag, attrs in self.elements if tag == "data"}


def three(name: str = "relu1", output: str = "y", source: str = "out") -> Network:
    """Neurons that are always on, always off, and on where x > 0.9."""
    return Network(
        Port("x", (1,)),
        (
            Node("first", linear([[1.0], [-1.0], [1.0]], [1.0, -1.0, -0.9]), ("x",)),
            Node(name, Relu(), ("first",)),
            Node(source, linear([[1.0, 1.0, 1.0], [0.5, 0.1, 0.3]]), (name,)),
        ),
        (Output(output, source),),
    )


def channels(count: int = 3, side: int = 6) -> Network:
    """A convolution with ``count`` channels, the last of which is always 0, and a linear layer."""
    weight = np.random.default_rng(0).normal(size=(count, 1, 3, 3)).astype(np.float32)
    bias = np.zeros(count)
    bias[-1] = -1000.0
    size = count * (side - 2) ** 2
    head = np.random.default_rng(1).normal(size=(2, size)).astype(np.float32)
    return Network(
        Port("x", (1, side, side)),
        (
            Node("conv", Convolution(weight, bias, (1, 1), ((0, 0), (0, 0)), (1, 1)), ("x",)),
            Node("relu", Relu(), ("conv",)),
            Node("flat", Reshape((count, side - 2, side - 2), (size,)), ("relu",)),
            Node("out", Linear(head, np.zeros(2)), ("flat",)),
        ),
        (Output("y", "out"),),
    )
