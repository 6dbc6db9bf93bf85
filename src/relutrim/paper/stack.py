"""Many networks of one architecture as one: every weight has an axis of networks in front.

A linear layer of all networks is one batched matrix product. The product of one network has the same shape
however many others there are, and no sum runs over networks; so beside its neighbours a network computes what
it would compute alone, as far as the device's products do not round differently for batches of different
size. Convolutions are one grouped convolution on a GPU; on a CPU each network has its own, which is faster
there.

Values are ``(networks, rows, features)`` where they are flat, and ``(networks, rows, channels, height,
width)`` where they are images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from relutrim.paper.architecture import WINDOW, Layer, Op
from relutrim.paper.draws import generator

NORM_EPS = 1e-5
_NORM_MOMENTUM = 0.1


class Stack:
    """The weights of all networks, by the names that a module of one network gives them."""

    def __init__(
        self, layers: Sequence[Layer], seeds: Sequence[int], device: torch.device, begin: str = "normal"
    ) -> None:
        """Weights begin as :class:`~relutrim.paper.recipe.Recipe` says, from each network's seed; biases
        with 0.
        """
        self.layers = tuple(layers)
        self.networks = len(seeds)
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        sources = [generator(seed, "weights") for seed in seeds]
        for layer in layers:
            name, outputs = layer.name, layer.outputs
            if layer.op in (Op.LINEAR, Op.CONV):
                window = (WINDOW, WINDOW) if layer.op is Op.CONV else ()
                shape = (outputs, layer.inputs, *window)
                inputs = layer.inputs * math.prod(window)
                weights = [_drawn(shape, inputs, begin, source) for source in sources]
                self.parameters[f"{name}.weight"] = torch.stack(weights)
                self.parameters[f"{name}.bias"] = torch.zeros(self.networks, outputs)
            elif layer.op is Op.NORM:
                self.parameters[f"{name}.weight"] = torch.ones(self.networks, outputs)
                self.parameters[f"{name}.bias"] = torch.zeros(self.networks, outputs)
                self.buffers[f"{name}.running_mean"] = torch.zeros(self.networks, outputs)
                self.buffers[f"{name}.running_var"] = torch.ones(self.networks, outputs)
        self.parameters = {key: value.to(device).requires_grad_() for key, value in self.parameters.items()}
        self.buffers = {key: value.to(device) for key, value in self.buffers.items()}
        norms = {layer.name for layer in layers if layer.op is Op.NORM}
        self.penalised = tuple(
            key for key in self.parameters if key.endswith(".weight") and key.partition(".")[0] not in norms
        )
        """The parameters that the l1 penalty is on."""

    def forward(self, x: Tensor, *, training: bool = False) -> Tensor:
        """The outputs ``(networks, rows, outputs)`` for inputs ``(networks, rows, ...)``."""
        for layer in self.layers:
            match layer.op:
                case Op.LINEAR:
                    weight, bias = self._pair(layer)
                    x = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
                case Op.CONV:
                    x = _convolved(x, *self._pair(layer))
                case Op.NORM:
                    x = self._normalised(layer, x, training)
                case Op.RELU:
                    x = x.relu()
                case Op.MAX_POOL:
                    x = _pooled(F.max_pool2d, x)
                case Op.AVG_POOL:
                    x = _pooled(F.avg_pool2d, x)
                case Op.FLATTEN:
                    x = x.flatten(2)
        return x

    def _pair(self, layer: Layer) -> tuple[Tensor, Tensor]:
        return self.parameters[f"{layer.name}.weight"], self.parameters[f"{layer.name}.bias"]

    def _normalised(self, layer: Layer, x: Tensor, training: bool) -> Tensor:
        """Batch normalisation, with the batch's own mean and variance while training."""
        weight, bias = self._pair(layer)
        mean, variance = (self.buffers[f"{layer.name}.{name}"] for name in ("running_mean", "running_var"))
        spatial = x.dim() > 3
        view = (self.networks, 1, layer.outputs, *([1, 1] if spatial else []))
        axes = (1, 3, 4) if spatial else (1,)
        if training:
            rows = math.prod(x.shape[axis] for axis in axes)
            here, spread = x.mean(axes), x.var(axes, correction=0)
            with torch.no_grad():
                mean.lerp_(here, _NORM_MOMENTUM)
                variance.lerp_(spread * (rows / max(rows - 1, 1)), _NORM_MOMENTUM)
        else:
            here, spread = mean, variance
        scale = weight.view(view) / (spread.view(view) + NORM_EPS).sqrt()
        return (x - here.view(view)) * scale + bias.view(view)

    def network(self, index: int) -> dict[str, Tensor]:
        """The weights of one network, on the CPU."""
        return {
            key: value[index].detach().cpu().clone()
            for key, value in (self.parameters | self.buffers).items()
        }


def _drawn(shape: tuple[int, ...], inputs: int, begin: str, source: torch.Generator) -> Tensor:
    if begin == "uniform":
        return (2 * torch.rand(shape, generator=source) - 1) / math.sqrt(inputs)
    return math.sqrt(2 / inputs) * torch.randn(shape, generator=source)


def _pooled(pool: Callable[[Tensor, int], Tensor], x: Tensor) -> Tensor:
    out = pool(x.flatten(0, 1), 2)
    return out.view(*x.shape[:2], *out.shape[1:])


def _convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.device.type == "cpu":
        return torch.stack([F.conv2d(*one) for one in zip(x, weight, bias, strict=True)])
    networks, rows = x.shape[:2]
    side_by_side = x.transpose(0, 1).flatten(1, 2)
    out = F.conv2d(side_by_side, weight.flatten(0, 1), bias.flatten(), groups=networks)
    return out.view(rows, networks, -1, *out.shape[2:]).transpose(0, 1)
