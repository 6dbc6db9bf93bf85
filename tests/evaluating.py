"""Networks evaluated in float32, with sums in any order: every order is one that a runtime might choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch

from relutrim.graph import Add, AveragePool, Convolution, Linear, MaxPool, Mean, Network, Node, Relu, Scale

f32 = np.float32


class Runtime:
    """One way to evaluate: an order of summation drawn anew for every sum, with or without fused
    multiply-add, and with linear nodes and the scales behind them in one, or not.

    ``given`` makes the value of a node that is not computed from its inputs' values, such as a batch norm by
    its vectors.
    """

    def __init__(self, seed: int, *, order: str = "random", fma: bool = False, fuse: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.order, self.fma, self.fuse = order, fma, fuse

    def __call__(self, network: Network, x: Sequence[float], given: Mapping[str, object] = {}) -> np.ndarray:
        values = {network.input.name: np.asarray(x, f32).ravel()}
        assert (values[network.input.name] == np.asarray(x).ravel()).all()
        with np.errstate(all="ignore"):
            for node in network.nodes:
                if node.name in given:
                    values[node.name] = given[node.name](values[node.inputs[0]])
                else:
                    values[node.name] = self._value(network, node, values)
        return np.concatenate([values[source] for source in network.sources])

    def _value(self, network: Network, node: Node, values: dict[str, np.ndarray]) -> np.ndarray:
        operator = node.operator
        inputs = [values[name] for name in node.inputs]
        shapes = [network.shapes[name] for name in node.inputs]
        if isinstance(operator, Scale):
            s, t = (
                np.broadcast_to(a, shapes[0]).ravel().astype(f32) for a in (operator.scale, operator.shift)
            )
            behind = next((n for n in network.nodes if n.name == node.inputs[0]), None)
            if self.fuse and behind is not None and isinstance(behind.operator, Linear | Convolution):
                weight, bias = matrix(network, behind)
                fused = [(w * factor).astype(f32) for w, factor in zip(weight, s, strict=True)]
                shift = (bias * s).astype(f32) + t
                read = values[behind.inputs[0]]
                return np.array(
                    [self._dot(w, read, b) for w, b in zip(fused, shift, strict=True)], f32
                ).reshape(-1)
            return np.array([self._dot(s[i : i + 1], inputs[0][i : i + 1], t[i]) for i in range(len(s))], f32)
        if isinstance(operator, Linear | Convolution):
            weight, bias = matrix(network, node)
            return np.array([self._dot(w, inputs[0], b) for w, b in zip(weight, bias, strict=True)], f32)
        if isinstance(operator, Add):
            return np.array([self._sum(list(terms)) for terms in zip(*inputs, strict=True)], f32)
        if isinstance(operator, AveragePool | Mean):
            return self._means(network, node, inputs[0])
        if isinstance(operator, Relu):
            return np.maximum(inputs[0], f32(0))
        tensors = [torch.as_tensor(v).reshape(1, *shape) for v, shape in zip(inputs, shapes, strict=True)]
        return operator.forward(tensors).numpy().ravel()  # only moves or picks

    def _means(self, network: Network, node: Node, x: np.ndarray) -> np.ndarray:
        shares, _ = matrix(network, node)
        found = []
        for row in shares:
            count = round(1 / row.max()) if row.any() else 1
            total = self._sum([x[i] for i in np.flatnonzero(row)])
            by_share = self.random.random() < 0.5
            found.append(total * f32(f32(1) / f32(count)) if by_share else total / f32(count))
        return np.array(found, f32)

    def _dot(self, weight: np.ndarray, x: np.ndarray, bias: np.float32) -> np.float32:
        used = np.flatnonzero(weight)
        if not self.fma:
            products = [weight[i] * x[i] for i in used]
            return self._sum([*products, bias] if bias != 0 else products)
        total, first = bias, self.random.permutation(used)
        for i in first:
            total = f32(np.float64(weight[i]) * np.float64(x[i]) + np.float64(total))
        return total

    def _sum(self, terms: list[np.float32]) -> np.float32:
        """In order, from the largest to the smallest, or pair by pair at random."""
        if not terms:
            return f32(0)
        if self.order == "sizes":
            terms = sorted(terms, key=abs, reverse=True)
        elif self.order == "random":
            terms = [terms[i] for i in self.random.permutation(len(terms))]
        if self.order == "pairs":
            while len(terms) > 1:
                a, b = self.random.choice(len(terms), 2, replace=False)
                rest = [t for i, t in enumerate(terms) if i not in (a, b)]
                terms = [*rest, terms[a] + terms[b]]
            return terms[0]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def matrix(network: Network, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """The rows of ``W`` in float32, and ``b``: what an affine node does to a flat value."""
    operator = node.operator
    (shape,), made = [network.shapes[name] for name in node.inputs], network.shapes[node.name]
    size = prod(made)
    units = torch.eye(size, dtype=torch.float64).reshape(size, *made)
    rows = operator.adjoint(units, [shape])[0].reshape(size, prod(shape)).numpy()
    assert not isinstance(operator, MaxPool)
    wide = units.new_zeros(1, *shape)
    bias = torch.zeros(size, dtype=torch.float64)
    if isinstance(operator, Linear | Convolution):
        bias = operator.forward([wide]).flatten()
    with np.errstate(over="ignore"):
        return rows.astype(f32), bias.numpy().astype(f32)


def runtimes(count: int) -> list[Runtime]:
    """Some of each kind."""
    orders = ("random", "pairs", "sizes", "given")
    return [
        Runtime(seed, order=orders[seed % 4], fma=seed % 3 == 2, fuse=seed % 2 == 1) for seed in range(count)
    ]
