"""The convolutional networks that ``benchmarks.cnn`` measures, as modules.

Those of ``networks/cnn`` get their weights from the ONNX file. The toy network, a VGG-11 of full width and a
network of ResNet-50's size are made here, with random weights and some channels that batch norm turns off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

Array = npt.NDArray[np.generic]
VGG = (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0)
"""Channels of the shared VGG's convolutions; 0 is a max pooling."""
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
_SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
_OFF = 0.3
"""The share of channels that random networks have turned off."""


class Residual(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet-20."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.b1, self.r1 = nn.BatchNorm2d(after), nn.ReLU()
        self.c2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.b2, self.r2 = nn.BatchNorm2d(after), nn.ReLU()
        self.sc = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The value of the block."""
        y = self.b2(self.c2(self.r1(self.b1(self.c1(x)))))
        found: Tensor = self.r2(y + self.sc(x))
        return found


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, as in ResNet-50."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.c1, self.b1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.b2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.b3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.sc = _shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The value of the block."""
        y = torch.relu(self.b1(self.c1(x)))
        y = torch.relu(self.b2(self.c2(y)))
        return torch.relu(self.b3(self.c3(y)) + self.sc(x))


class Toy(nn.Module):
    """3-16-24-24 channels with one residual sum, for images of 16x16."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.c3, self.b3 = nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.last = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The value of the block."""
        x = torch.relu(self.b1(self.c1(x)))
        x = torch.relu(self.b2(self.c2(x)))
        x = torch.relu(self.b3(self.c3(x)) + x)
        found: Tensor = self.last(x.mean((2, 3)))
        return found


def module_of(path: Path) -> nn.Sequential:
    """A network of ``networks/cnn`` as a module, with the weights of its ONNX file."""
    arrays = stored(onnx.load(path))
    kind = path.stem.split("_")[0]
    module = {"vgg": lambda: _vgg(VGG), "resnet20": _resnet20, "mobile": _mobile}[kind]()
    state = module.state_dict()
    for name, value in state.items():
        if not name.endswith("num_batches_tracked"):
            state[name] = torch.as_tensor(np.array(arrays[name])).reshape(value.shape)
    module.load_state_dict(state)
    return module.eval()


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    """The arrays of a model by name: initializers, constants, and other names for both."""
    found = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def toy() -> Toy:
    """The toy network; 8 of its channels are dead, 7 of them in all of their group."""
    torch.manual_seed(0)
    module = Toy()
    with torch.no_grad():
        for norm in (module.b1, module.b2, module.b3):
            _ordinary(norm)
        for norm, first, last in ((module.b1, 0, 4), (module.b2, 0, 4), (module.b3, 0, 3)):
            norm.weight[first:last], norm.bias[first:last] = 1e-3, -0.5
    return module.eval()


def vgg11() -> nn.Sequential:
    """A VGG-11 of full width, slimmed at random."""
    torch.manual_seed(0)
    return _slimmed(_vgg(VGG11))


def resnet50() -> nn.Sequential:
    """A network of ResNet-50's size and shape, slimmed at random."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(before, width, 1 if number else stride))
            before = 4 * width
    return _slimmed(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)))


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


def _vgg(plan: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in plan:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


def _resnet20() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range(3):
            layers.append(Residual(before, width, 1 if number else stride))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _mobile() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    before = 32
    for width, stride in _SEPARABLE:
        layers += [nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False)]
        layers += [nn.BatchNorm2d(before), nn.ReLU6(), nn.Conv2d(before, width, 1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU6()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


@torch.no_grad()
def _slimmed(module: nn.Sequential) -> nn.Sequential:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            _ordinary(norm)
            off = int(_OFF * norm.num_features)
            norm.weight[:off], norm.bias[:off] = 0.0, -0.05
    return module.eval()


def _ordinary(norm: nn.BatchNorm2d) -> None:
    """Numbers as training leaves them."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(0, 0.1)
    norm.running_var.uniform_(0.5, 1.5)
    norm.weight.uniform_(0.5, 1.5)
    norm.bias.uniform_(-0.1, 0.3)
