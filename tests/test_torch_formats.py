"""PyTorch modules in and out: the network computes what the module computes, and the module is left alone."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

import relutrim
from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Add, Fresh, Linear, Network, Node, Output, Port, Relu, Reshape, Scale, TailStep
from relutrim.io.torch.graph_module import module_of
from relutrim.io.torch.module import read_module

pytestmark = [
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors"),
    pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax"),
]


def made(function, **tensors):
    """A module with the given forward function and attributes: modules, parameters or buffers."""

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in tensors.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)

        forward = function

    return Custom()


def mlp(*widths, last=(), dtype=None):
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1], *last).to(dtype or torch.float32)


def norm(features, **options):
    layer = nn.BatchNorm1d(features, **options)
    with torch.no_grad():
        layer.running_mean.uniform_(-1, 1)
        layer.running_var.uniform_(0.5, 2)
        if layer.affine:
            layer.weight.uniform_(-2, 2)
            layer.bias.uniform_(-1, 1)
    return layer


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape))


def residual(self, x):
    return x + self.b(torch.relu(self.a(x)))


def method_relu(self, x):
    return self.a(x).relu()


def two_outputs(self, x):
    hidden = F.relu(self.a(x))
    return self.b(hidden), hidden


def arithmetic(self, x):
    x = (x - 0.5) / 0.25 * self.k + self.p
    x = 2 - (3 * x) - self.p
    return -torch.sub(torch.add(x, self.k), 1.5) * torch.full((4,), 3.0, dtype=torch.float64)


def view_dynamic(self, x):
    return self.a(x.view(x.size(0), -1))


def view_shape(self, x):
    return self.a(x.reshape(x.shape[0], x.shape[1] * x.size(2)))


def view_constant(self, x):
    return self.a(x.view(-1, 4))


def flatten_function(self, x):
    return self.a(torch.flatten(x, 1))


def flatten_method(self, x):
    return self.a(x.flatten(start_dim=1))


def unflattened(self, x):
    return self.a(x.unflatten(1, (2, 2)).contiguous().clone()).flatten(1)


def dropped(self, x):
    return self.a(F.dropout(x, 0.5, self.training))


def branch_on_mode(self, x):
    return self.a(x) if self.training else self.b(x)


def default_argument(self, x, mask=None):
    return self.a(x if mask is None else x * mask)


def products(self, x):
    return torch.mm(torch.relu(torch.matmul(x @ self.w, self.v) + self.p), self.v.t())


def added_product(self, x):
    return torch.addmm(self.p, F.relu(torch.addmm(torch.ones(1, 4, dtype=torch.float64), x, self.v)), self.v)


def functional(self, x):
    return F.linear(F.relu(F.linear(x, self.w * self.mask, self.p)), self.v)


def shared(self, x):
    return self.a(self.r(self.a(self.r(self.a(x)))))


def functional_norm(self, x):
    return F.batch_norm(x, self.n.running_mean, self.n.running_var, eps=1e-3)


def inplace(self, x):
    return F.relu_(self.b(F.relu(self.a(x), inplace=True)))


MODULES = {
    "sequential": (lambda: mlp(4, 7, 5, 3), None),
    "single linear": (lambda: nn.Linear(4, 3), None),
    "no bias": (lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(inplace=True)), None),
    "flatten": (lambda: nn.Sequential(nn.Flatten(), *mlp(4, 5, 2)), (1, 2, 2)),
    "flatten, flat input": (lambda: nn.Sequential(nn.Flatten(), *mlp(4, 5, 2)), None),
    "leading axes": (lambda: mlp(4, 5, 2), (3, 4)),
    "dropout and identity": (lambda: nn.Sequential(nn.Dropout(), nn.Identity(), *mlp(4, 3, 2)), None),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 6), norm(6), nn.ReLU(), norm(6, affine=False)), None),
    "nested": (lambda: nn.Sequential(mlp(4, 3), nn.Sequential(nn.ReLU(), mlp(3, 2))), None),
    "width zero": (lambda: mlp(4, 0, 2), None),
    "softmax": (lambda: mlp(4, 5, 3, last=[nn.Softmax(dim=1)]), None),
    "log softmax": (lambda: mlp(4, 5, 3, last=[nn.LogSoftmax(dim=-1)]), None),
    "softmax of old": (lambda: made(lambda self, x: F.softmax(self.a(x)), a=nn.Linear(4, 3)), None),
    "sigmoid": (lambda: mlp(4, 5, 3, last=[nn.Sigmoid()]), None),
    "unflatten": (lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(2)), (4,)),
    "residual": (lambda: made(residual, a=nn.Linear(4, 6), b=nn.Linear(6, 4)), None),
    "method": (lambda: made(method_relu, a=nn.Linear(4, 6)), None),
    "two outputs": (lambda: made(two_outputs, a=nn.Linear(4, 6), b=nn.Linear(6, 4)), None),
    "arithmetic": (lambda: made(arithmetic, k=torch.randn(4), p=parameter(1, 4)), (4,)),
    "view(size(0), -1)": (lambda: made(view_dynamic, a=nn.Linear(4, 2)), (2, 2)),
    "view of shape": (lambda: made(view_shape, a=nn.Linear(4, 2)), (2, 2)),
    "view(-1, n)": (lambda: made(view_constant, a=nn.Linear(4, 2)), (2, 2)),
    "torch.flatten": (lambda: made(flatten_function, a=nn.Linear(4, 2)), (2, 2)),
    "x.flatten": (lambda: made(flatten_method, a=nn.Linear(4, 2)), (2, 2)),
    "x.unflatten": (lambda: made(unflattened, a=nn.Linear(2, 3)), (4,)),
    "F.dropout": (lambda: made(dropped, a=nn.Linear(4, 2)), None),
    "eval mode counts": (lambda: made(branch_on_mode, a=nn.Linear(4, 2), b=nn.Linear(4, 2)), None),
    "default argument": (lambda: made(default_argument, a=nn.Linear(4, 2)), None),
    "matmul": (lambda: made(products, w=parameter(4, 5), v=torch.randn(5, 3), p=parameter(3)), (4,)),
    "addmm": (lambda: made(added_product, v=parameter(4, 4), p=parameter(4)), (4,)),
    "F.linear": (
        lambda: made(functional, w=parameter(5, 4), mask=torch.ones(5, 4), v=parameter(2, 5), p=parameter(5)),
        (4,),
    ),
    "shared layer": (lambda: made(shared, a=nn.Linear(4, 4), r=nn.ReLU()), None),
    "F.batch_norm": (lambda: made(functional_norm, n=norm(4)), (4,)),
    "in place": (lambda: made(inplace, a=nn.Linear(4, 6), b=nn.Linear(6, 4)), None),
    "residual in place": (lambda: made(residual_in_place, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), None),
    "sizes counted up": (lambda: made(counted, a=nn.Linear(4, 4)), None),
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU()), None),
    "spectral norm": (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3))), None),
    "pruned": (lambda: nn.Sequential(prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5)), None),
}


def weights_of(module):
    state = io.BytesIO()
    torch.save(module.state_dict(), state)
    return state.getvalue()


def outputs_of(module, x):
    found = module(x)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.fixture(params=MODULES, ids=str)
def case(request):
    torch.manual_seed(1)
    make, shape = MODULES[request.param]
    return make().double(), shape


def test_the_network_computes_what_the_module_computes(case):
    module, shape = case
    network = read_module(module, shape)
    module.eval()
    x = torch.randn(8, *network.input.shape, dtype=torch.float64)
    values = network.run(x)
    for output, truth in zip(network.outputs, outputs_of(module, x), strict=True):
        ours = values[output.source]
        for step in output.tail:
            functions = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}
            axis = step.attributes.get("axis")
            ours = functions[step.kind](ours, axis) if axis else getattr(torch, step.kind.lower())(ours)
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


def test_the_module_built_from_it_computes_the_same(case):
    module, shape = case
    network = read_module(module, shape)
    built = module_of(network)
    x = torch.randn(8, *network.input.shape, dtype=torch.float64)
    for ours, truth in zip(outputs_of(built, x), outputs_of(module.eval(), x), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


def test_reading_what_was_built_gives_the_same_network_again(case):
    module, shape = case
    first = read_module(module, shape)
    second = read_module(module_of(first), first.input.shape)
    again = read_module(module_of(second), second.input.shape)
    assert kinds(second) == kinds(first)
    assert [node.name for node in again] == [node.name for node in second]
    affine = [[node for node in one if isinstance(node.operator, Linear)] for one in (first, second)]
    for a, b in zip(*affine, strict=True):
        np.testing.assert_array_equal(a.operator.weight, b.operator.weight)
        np.testing.assert_array_equal(a.operator.bias, b.operator.bias)


def kinds(network):
    """Operators and shapes; a scale and a shift of one node are written as two steps."""
    found = [(node.operator.kind, network.shapes[node.name]) for node in network]
    return [one for place, one in enumerate(found) if one[0] != "Scale" or one not in found[:place][-1:]]


def test_the_module_is_left_alone(case):
    module, shape = case
    module.train()
    list(module.modules())[-1].eval()
    flags = [part.training for part in module.modules()]
    hooks = [len(part._forward_pre_hooks) + len(part._forward_hooks) for part in module.modules()]
    attributes = [sorted(vars(part)) for part in module.modules()]
    weights, random = weights_of(module), torch.get_rng_state()
    read_module(module, shape)
    assert [part.training for part in module.modules()] == flags
    assert [len(part._forward_pre_hooks) + len(part._forward_hooks) for part in module.modules()] == hooks
    assert [sorted(vars(part)) for part in module.modules()] == attributes
    assert weights_of(module) == weights
    assert torch.equal(torch.get_rng_state(), random)


def test_state_that_forward_would_change_is_not_changed():
    def forward(self, x):
        self.calls.add_(1)
        return self.a(x)

    module = made(forward, a=nn.Linear(3, 2), calls=torch.zeros(()))
    read_module(module)
    assert module.calls == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_weight_norm_counts_with_its_present_weights():
    layer = nn.utils.weight_norm(nn.Linear(4, 3))
    with torch.no_grad():
        layer.weight_g.mul_(2)
    network = read_module(layer)
    x = torch.randn(5, 4)
    torch.testing.assert_close(network(x), layer(x))
    # Now the layer holds a computed weight, which torch cannot copy.
    torch.testing.assert_close(read_module(layer)(x), layer(x))


def test_parametrised_custom_layers_are_read():
    class Positive(nn.Module):
        def forward(self, x):
            return x.abs()

    module = made(lambda self, x: F.linear(x, self.w), w=parameter(3, 4))
    parametrize.register_parametrization(module, "w", Positive())
    x = torch.randn(5, 4)
    torch.testing.assert_close(read_module(module, (4,))(x), module(x))


def test_names_are_the_paths_of_the_modules():
    module = made(lambda self, x: self.net(x), net=mlp(4, 3, 2))
    assert [node.name for node in read_module(module)] == ["net.0", "net.1", "net.2"]
    assert [node.name for node in read_module(mlp(4, 3, 2))] == ["0", "1", "2"]


def test_a_reused_layer_gets_a_name_for_each_use():
    names = [node.name for node in read_module(made(shared, a=nn.Linear(4, 4), r=nn.ReLU()))]
    assert names == ["a", "r", "a_1", "r_1", "a_2"]


def test_a_layer_named_like_the_output_does_not_clash_with_it():
    module = made(lambda self, x: F.relu(self.output(x)), output=nn.Linear(4, 4))
    network = read_module(module)
    assert network.outputs[0].name not in [node.name for node in network]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_kept(dtype):
    network = read_module(mlp(4, 3, 2, dtype=dtype))
    assert network.dtype == str(dtype).removeprefix("torch.")
    assert next(module_of(network).parameters()).dtype == dtype


def test_an_epsilon_is_rounded_like_the_weights():
    """torch adds it to the variance in their type; one that nearly cancels it tells the two apart."""
    layer = norm(1, affine=False).eval()
    epsilon = torch.tensor(layer.eps)
    layer.running_mean.zero_()
    layer.running_var.copy_(-torch.nextafter(epsilon, torch.zeros(())))
    truth = layer(torch.ones(1, 1)).item()
    assert truth == 2.0**20
    assert read_module(layer, (1,)).nodes[0].operator.scale == pytest.approx(truth, rel=1e-7)


def test_numbers_of_python_are_rounded_like_the_weights():
    module = made(lambda self, x: self.a(x * 0.1), a=nn.Linear(2, 2))
    scale = read_module(module).nodes[0].operator
    assert isinstance(scale, Scale)
    assert scale.scale == float(np.float32(0.1))


def spoiled(value):
    module = mlp(4, 3, 2)
    with torch.no_grad():
        module[2].bias[1] = value
    return module


def hooked():
    module = mlp(4, 3, 2)
    module[1].register_forward_hook(lambda module, args, output: output * 2)
    return module


def replaced():
    module = mlp(4, 3, 2)
    module[0].forward = lambda x: x
    return module


def locked():
    module = mlp(4, 3, 2)
    module.lock = threading.Lock()
    return module


def mixed():
    module = mlp(4, 3, 2)
    module[2].double()
    return module


def aliased(self, x):
    y = x = self.a(x)
    x += 1
    return x * 3 + y


def overwritten(self, x):
    hidden = self.a(x)
    flat = hidden.flatten(1)
    return F.relu(hidden, inplace=True) + flat


def gained(function):
    """The first layer's values are a hundred thousand times as large as those of the second."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    with torch.no_grad():
        first.weight.mul_(1e5)
        second.weight.mul_(1e-5)
    return made(function, a=first, b=second)


def counted(self, x):
    """Sizes are counted up in place, which changes no tensor."""
    wide = x.shape[1]
    wide *= 2
    wide //= 2
    return self.a(x).view(-1, wide)


def residual_in_place(self, x):
    y = self.a(x)
    y = F.relu(y, inplace=True)
    y += x
    z = self.b(y)
    z -= y
    z *= 2
    z /= 3
    return z


def indexed(self, x):
    y = self.a(x)
    y[:, 0] = 0
    return y


def data_set(self, x):
    y = self.a(x)
    y.data = y + 1
    return y


def changed_weight(self, x):
    w = self.w
    w *= 2
    return x * w


def counts(self, x):
    self.calls.add_(1)
    return self.a(x) + self.calls


def new_constant(self, x):
    k = torch.ones(4)
    k += 1
    return self.a(x) * k


def branching(self, x):
    return self.a(x) if x.sum() > 0 else -self.a(x)


def log_softmax_within(self, x):
    return self.a(torch.log_softmax(self.a(x), -1))


lin = nn.Linear(4, 4)
REFUSED = {
    "nan": (lambda: spoiled(float("nan")), InputError, "'2'.*NaN"),
    "mixed": (mixed, InputError, "does not run.*same dtype"),
    "not to be copied": (locked, UnsupportedError, "cannot be copied"),
    "lazy": (lambda: nn.LazyLinear(3), InputError, "no numbers yet"),
    "meta": (lambda: nn.Linear(3, 2, device="meta"), InputError, "no numbers yet"),
    "not a module": (lambda: 3, InputError, "torch.nn.Module is needed"),
    "recurrent": (lambda: nn.LSTM(4, 4), InputError, "input_shape="),
    "decides by values": (lambda: made(branching, a=lin), UnsupportedError, "torch.export cannot record"),
    "two inputs": (lambda: made(lambda s, x, y: s.a(x + y), a=lin), InputError, "missing 1 required"),
    "changed by its data": (
        lambda: made(data_set, a=lin),
        UnsupportedError,
        "something else than the module",
    ),
    "constants alone": (lambda: made(lambda s, x: s.a.bias, a=lin), UnsupportedError, "row by row"),
    "shape unknown": (lambda: nn.Sequential(nn.ReLU()), InputError, "input_shape="),
    "not flat": (lambda: made(view_shape, a=nn.Linear(4, 2)), InputError, "input_shape="),
    "layers that do not fit": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)), InputError, "flat"),
    "script": (lambda: torch.jit.trace(lin, torch.zeros(1, 4)), UnsupportedError, "TorchScript"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_represented_is_refused_with_its_place_and_reason(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        read_module(make())


def numbered(value):
    return lambda: made(lambda s, x: s.a(x) * value, a=lin)


OPAQUE = {
    "infinity": (lambda: spoiled(float("inf")), ["2"], ["1"]),
    "batch statistics": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)), ["1"], ["0"],
    ),
    "other activation": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU()), ["1"], ["0"]),
    "other function": (lambda: made(lambda s, x: torch.sin(s.a(x)), a=lin), ["sin"], ["a"]),
    "product": (lambda: made(lambda s, x: s.a(x) * x, a=lin), ["mul"], ["a", "x"]),
    "quotient": (lambda: made(lambda s, x: 1 / s.a(x), a=lin), ["reciprocal"], ["a"]),
    "division by zero": (lambda: made(lambda s, x: s.a(x) / 0, a=lin), ["div"], ["a"]),
    "infinite constant": (numbered(float("inf")), ["mul"], ["a"]),
    "self attention": (lambda: made(lambda s, x: s.a(x) @ x.T, a=lin), [], ["x", "a"]),
    "from the left": (lambda: made(lambda s, x: s.k @ s.a(x).T, a=lin, k=torch.eye(4)), [], ["a"]),
    "log softmax within": (lambda: made(log_softmax_within, a=lin), ["log_softmax"], ["a"]),
    "softmax of batch": (lambda: mlp(4, 3, last=[nn.Softmax(dim=0)]), ["1"], ["0"]),
    "flatten of batch": (lambda: mlp(4, 3, last=[nn.Flatten(0)]), [], ["0"]),
    "view of batch": (lambda: made(lambda s, x: s.a(x).view(1, -1), a=lin), [], ["a"]),
    "batch size": (lambda: made(lambda s, x: s.a(x) * x.size(0), a=lin), ["mul"], ["a"]),
    "broadcast sum": (
        lambda: made(lambda s, x: s.a(x) + s.a(x).view(-1, 1, lin.out_features), a=lin), [], ["a", "view"],
    ),
    "always drops": (lambda: made(lambda s, x: F.dropout(s.a(x)), a=lin), ["dropout"], ["a"]),
    "noise": (lambda: made(lambda s, x: s.a(x) + torch.rand_like(x), a=lin), ["rand_like"], ["x"]),
    "batch norm of batch": (
        lambda: made(lambda s, x: F.batch_norm(s.a(x), None, None, training=True), a=lin),
        ["batch_norm"],
        ["a"],
    ),
    "changes its weight": (
        lambda: made(changed_weight, w=nn.Parameter(torch.ones(4)), a=lin), ["mul_1"], ["x"],
    ),
    "counts": (lambda: made(counts, a=lin, calls=torch.zeros(4)), ["add_4"], ["a"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_not_known_is_opaque_and_what_it_reads_stays(name):
    make, fresh, pinned = OPAQUE[name]
    network = read_module(make())
    assert [node.name for node in network if isinstance(node.operator, Fresh)] == fresh
    assert list(network.pinned) == pinned
    assert all(node.origin is not None for node in network)


IN_PLACE = {
    "read after change": (overwritten, {"a": lin}),
    "changed by a second name": (aliased, {"a": lin}),
    "a constant that is new each time": (new_constant, {"a": lin}),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_changed_by_another_name_is_read_right(name):
    function, tensors = IN_PLACE[name]
    module = made(function, **tensors).eval()
    network = read_module(module)
    assert not network.pinned
    x = torch.randn(5, 4)
    torch.testing.assert_close(network(x), module(x.clone()))


def test_entries_that_are_changed_in_place_are_opaque():
    network = read_module(made(indexed, a=lin))
    assert isinstance(network[network.outputs[0].source].operator, Fresh)
    assert "a" in network.pinned


RETURNED = {
    "a dict": (lambda s, x: {"z": s.a(x), "y": F.relu(x)}, ["output_0", "output_1"]),
    "tuple of one": (lambda s, x: (s.a(x),), ["output"]),
    "a constant beside it": (lambda s, x: (s.a.bias, s.a(x)), ["output_1"]),
    "a number beside it": (lambda s, x: (3, s.a(x)), ["output_1"]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_the_outputs_are_the_tensors_with_a_row_for_each_input(name):
    function, names = RETURNED[name]
    assert [output.name for output in read_module(made(function, a=lin)).outputs] == names


def test_hooks_and_replaced_methods_count():
    for module, width in ((hooked(), 4), (replaced(), 3)):
        x = torch.randn(3, width)
        torch.testing.assert_close(read_module(module, (width,))(x), module(x))


def test_an_example_and_a_program_are_read_too():
    module = made(two_outputs, a=nn.Linear(4, 6), b=nn.Linear(6, 4)).eval()
    x = torch.randn(3, 4)
    program = torch.export.export(module, (x,))
    for network in (relutrim.load(module, example_input=x), relutrim.load(program)):
        torch.testing.assert_close(network(x), torch.cat(module(x), 1))
    assert relutrim.load(program).input.batch == 3
    with pytest.raises(InputError, match="a batch of inputs"):
        relutrim.load(module, example_input=3)
    with pytest.raises(InputError, match="a file says"):
        relutrim.load(relutrim.demo_model(), input_shape=(784,))


def test_the_recording_is_named():
    assert read_module(mlp(4, 3, 2)).metadata == {
        "relutrim.recorded": "in eval mode, for inputs of shape (batch, 4)"
    }
    fixed = made(lambda s, x: s.a(x.view(2, 4)), a=lin)
    assert read_module(fixed, (4,)).input.batch == 2


def test_a_module_that_is_trained_is_read_in_eval_mode_with_a_warning():
    with pytest.warns(UserWarning, match="eval mode"):
        read_module(nn.Sequential(nn.Linear(4, 3), norm(3)).train())


def test_what_is_wrapped_around_a_module_is_taken_off():
    inner = mlp(4, 3, 2)
    for module in (nn.DataParallel(inner), torch.compile(inner)):
        assert [node.name for node in read_module(module)] == ["0", "1", "2"]


def test_every_node_knows_the_tensors_that_it_comes_from():
    module = nn.Sequential(nn.Linear(4, 3), norm(3), nn.PReLU(3), nn.Linear(3, 2, bias=False))
    network = read_module(module.eval())
    state = module.state_dict()
    for node in network:
        for field, stored in node.origin.fields.items():
            numbers = stored.back(getattr(node.operator, field))
            np.testing.assert_array_equal(numbers, state[stored.tensor].numpy().astype(float))
    fields = [set(node.origin.fields) for node in network if node.origin.fields]
    assert fields == [{"weight", "bias"}, {"gain", "bias", "mean", "variance"}, {"scale"}, {"weight"}]
    assert network["0"].origin.fields["weight"].tensor == "0.weight"


class Doubled(nn.Linear):
    def forward(self, x):
        return F.linear(x, 2 * self.weight, self.bias)


def test_weights_that_are_computed_say_nothing_of_where_they_are_stored():
    assert set(read_module(Doubled(4, 3)).nodes[0].origin.fields) == {"bias"}


@pytest.mark.parametrize(
    "masked",
    [
        lambda layer: prune.random_unstructured(layer, "weight", 0.5),
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: nn.utils.weight_norm(layer),
        lambda layer: parametrizations.spectral_norm(layer),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_masks_and_parametrisations_are_numbers_of_a_copy_and_stay_in_the_module(masked):
    module = nn.Sequential(masked(nn.Linear(4, 3))).eval()
    kind, keys = type(module[0]), list(module.state_dict())
    truth = module(torch.eye(4))
    network = read_module(module)
    assert set(network.nodes[0].origin.fields) == {"weight", "bias"}
    assert (type(module[0]), list(module.state_dict())) == (kind, keys)
    assert torch.equal(module(torch.eye(4)), truth)


def stateful(self, x):
    """What is recorded does not depend on the call, the module does."""
    shift = 0.0 if torch.compiler.is_exporting() else 0.05
    return self.b(self.a(x)) + shift


def test_large_numbers_on_the_way_hide_no_difference_at_the_end():
    with pytest.raises(UnsupportedError, match="something else than the module"):
        read_module(gained(stateful), (4,))


def test_a_wrong_input_shape_is_refused():
    with pytest.raises(InputError, match=r"does not run on inputs of shape \(5,\)"):
        read_module(mlp(4, 3), (5,))


# Building


@st.composite
def chains(draw):
    widths = draw(st.lists(st.integers(0, 4), min_size=2, max_size=5).filter(lambda w: w[0] and w[-1]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes, reads = [], "x"
    for i, (a, b) in enumerate(pairwise(widths)):
        nodes.append(Node(f"fc{i}", Linear(random.normal(size=(b, a)), random.normal(size=b)), (reads,)))
        nodes.append(Node(f"relu{i}", Relu(), (f"fc{i}",)))
        reads = f"relu{i}"
    return Network(Port("x", (widths[0],)), tuple(nodes), (Output("y", reads),), "float64")


@settings(max_examples=30, deadline=None)
@given(chains())
def test_any_chain_becomes_a_module_with_the_same_function_and_names(network):
    module = module_of(network)
    layers = [node.name for node in network if isinstance(node.operator, Linear)]
    assert list(module.state_dict()) == [f"{name}.{kind}" for name in layers for kind in ("weight", "bias")]
    x = torch.randn(3, *network.input.shape, dtype=torch.float64)
    torch.testing.assert_close(module(x), network(x), rtol=1e-12, atol=1e-12)


def graph():
    """Two branches that meet, a scale, reshapes, two outputs of which one has a tail, and awkward names."""
    random = np.random.default_rng(0)
    nodes = (
        Node("forward", Scale.exactly(random.normal(size=(2, 3)), 1.0), ("x",)),
        Node("a.b", Reshape((2, 3), (6,)), ("forward",)),
        Node("a_b", Linear(random.normal(size=(4, 6)), random.normal(size=4)), ("a.b",)),
        Node("/relu", Relu(), ("a_b",)),
        Node("sum", Add(3), ("a_b", "/relu", "a_b")),
        Node("square", Reshape((4,), (2, 2)), ("sum",)),
    )
    outputs = (Output("p", "sum", (TailStep("Softmax", "soft", {"axis": -1}),)), Output("s", "square"))
    return Network(Port("x", (2, 3)), nodes, outputs, "float32")


def test_a_graph_becomes_a_module_with_the_same_function():
    network = graph()
    x = torch.randn(5, 2, 3)
    probabilities, square = module_of(network)(x)
    values = network.run(x)
    torch.testing.assert_close(probabilities, values["sum"].softmax(-1))
    torch.testing.assert_close(square, values["square"])
    assert "forward_" in dict(module_of(network).named_children())


MODELS = {"chain": lambda: read_module(mlp(4, 5, 3, last=[nn.Softmax(-1)])), "graph": graph}


@pytest.fixture(params=MODELS)
def built(request):
    network = MODELS[request.param]()
    return module_of(network), torch.randn(3, *network.input.shape)


def first(result):
    return result[0] if isinstance(result, tuple) else result


def test_built_modules_are_pickled_and_copied(built):
    module, x = built
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for copied in (loaded, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(first(copied(x)), first(module(x)))


def test_built_modules_take_their_own_state_dict(built):
    module, x = built
    other = copy.deepcopy(module)
    for tensor in other.state_dict().values():
        tensor.zero_()
    other.load_state_dict(module.state_dict())
    assert torch.equal(first(other(x)), first(module(x)))


def test_built_modules_train(built):
    module, x = built
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    before = first(module(x))
    first(module(x))[:, 0].sum().backward()
    optimiser.step()
    assert not torch.equal(first(module(x)), before)


def test_built_modules_are_exported(built):
    module, x = built
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(first(program.module()(x[:2])), first(module(x[:2])))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_built_modules_are_exported_to_onnx(built, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module, x = built
    target = tmp_path / "model.onnx"
    torch.onnx.export(module, (x,), target, dynamo=False, input_names=["x"])
    session = onnxruntime.InferenceSession(target.read_bytes(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], first(module(x)).detach(), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_the_one_asked_for(training):
    module = module_of(graph()).train(training)
    assert all(part.training is training for part in module.modules())


def test_building_draws_no_random_numbers():
    network = graph()
    before = torch.get_rng_state()
    module_of(network)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_without_nodes_is_the_identity():
    module = module_of(Network(Port("x", (2,)), (), (Output("y", "x"),)))
    assert torch.equal(module(torch.ones(1, 2)), torch.ones(1, 2))


def test_the_axis_of_a_tail_counts_as_in_a_file_without_a_batch_axis():
    tail = (TailStep("Identity", "same"), TailStep("Softmax", "soft", {"axis": 0}))
    module = module_of(Network(Port("x", (2, 3), None), (), (Output("y", "x", tail),)))
    x = torch.randn(4, 2, 3)
    torch.testing.assert_close(module(x), x.softmax(1))


def test_a_tail_unknown_to_torch_is_refused():
    network = Network(Port("x", (2,)), (), (Output("y", "x", (TailStep("ArgMax", "top"),)),))
    with pytest.raises(UnsupportedError, match=r"'top'.*ArgMax.*\.onnx"):
        module_of(network)
