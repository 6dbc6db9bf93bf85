"""``relutrim.compress``: what goes in, what comes out, and what is said about it."""

from __future__ import annotations

import copy
import io

import jsonschema
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import relutrim
from relutrim.errors import InputError
from relutrim.graph import Network, Node, Port
from relutrim.report.json import dumps, schema
from rewriting import compressed, dense, gap, linear


def small_module(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two copies of an active neuron, an inactive and two unstable ones."""
    module = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)).to(dtype)
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0, 2], [1, 2], [-1, -1], [1, -1], [-3, 1]]))
        module[0].bias.copy_(torch.tensor([1.0, 1, -1, 0, 1]))
    return module


@pytest.mark.parametrize("training", [True, False])
def test_a_module_comes_back_as_a_module_in_the_same_mode(training):
    result = relutrim.compress(small_module().train(training), relutrim.Box(0, 1))
    assert isinstance(result.model, nn.Module)
    assert all(part.training is training for part in result.model.modules())
    assert result.network.widths == [2, 3, 2]


def test_the_module_that_went_in_is_not_changed():
    module = small_module()
    before = copy.deepcopy(module.state_dict())
    relutrim.compress(module, relutrim.Box(0, 1))
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert module.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_smaller_module_computes_the_same(dtype):
    module = small_module(dtype).eval()
    smaller = relutrim.compress(module, relutrim.Box(0, 1)).model
    x = torch.rand(100, 2, dtype=dtype)
    assert smaller(x).dtype == dtype
    torch.testing.assert_close(smaller(x), module(x))


def test_its_state_travels_through_a_file():
    result = relutrim.compress(small_module().eval(), relutrim.Box(0, 1))
    again = relutrim.compress(small_module().eval(), relutrim.Box(0, 1)).model
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    file = io.BytesIO()
    torch.save(result.model.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    x = torch.rand(10, 2)
    assert torch.equal(again(x), result.model(x))


def test_it_can_be_trained():
    module = relutrim.compress(small_module().eval(), relutrim.Box(0, 1)).model
    x, target = torch.rand(32, 2), torch.zeros(32, 2)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    before = nn.functional.mse_loss(module(x), target)
    before.backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    optimiser.step()
    assert nn.functional.mse_loss(module(x), target) < before


def test_a_network_and_a_path_come_back_as_networks(tmp_path):
    network = dense(linear([[1.0, 2], [1, 2], [1, -1]], [1, 1, 0]), linear([[1, 2, 3]]), dtype="float32")
    path = tmp_path / "model.onnx"
    relutrim.save(network, path)
    content = path.read_bytes()
    for model in (network, path, str(path)):
        result = relutrim.compress(model, relutrim.Box(0, 1))
        assert isinstance(result.model, Network)
        assert result.model is result.stored
        assert result.network.widths == [2, 2, 1]
    assert path.read_bytes() == content


def test_a_saved_result_is_the_network_that_was_proved(tmp_path):
    network = dense(
        linear([[0.1, 0.2], [0.3, 0.6], [1, -1]], [1, 1, 0]), linear([[1 / 3, 2, 3]]), dtype="float32"
    )
    result = relutrim.compress(network, relutrim.Box(0, 1))
    result.save(tmp_path / "smaller.onnx")
    loaded = relutrim.load(tmp_path / "smaller.onnx")
    assert gap(result.stored, loaded, 0, 1) == 0


# Reports.


@pytest.mark.parametrize("rewrites", ["leo++", "all"])
def test_the_report_follows_its_schema(rewrites):
    for model in (small_module(), dense(linear([[-1.0]], [-1]), linear([[1.0]]))):
        result = relutrim.compress(model, relutrim.Box(0, 1).sum_between(0, 1.5), rewrites=rewrites)
        jsonschema.validate(result.report, schema("compression"))
        assert dumps(result.report)
        assert result.report["compressed"]["neurons"] == result.stored.neurons
        removed = sum(step["neurons_removed"] for step in result.report["rewrites"])
        assert removed == result.original.neurons - result.stored.neurons


def test_weaker_evidence_gives_up_the_proof_and_the_report_says_so():
    result = relutrim.compress(
        small_module(), relutrim.Box(0, 1), method="data", data=np.array([[0.9, 0.1]]), evidence="data"
    )
    assert result.deviation.proven is None
    assert result.report["deviation"]["proven"] is None
    jsonschema.validate(result.report, schema("compression"))


def test_the_name_of_the_input_means_nothing():
    plain = dense(linear([[1.0, 2], [1, 2], [1, -1]], [1, 1, 0]), linear([[1, 2, 3]]))
    nodes = (Node("linear1", plain["linear1"].operator, ("x.raw",)), *plain.nodes[1:])
    odd = Network(Port("x.raw", (2,)), nodes, plain.outputs, dtype="float64")
    assert compressed(odd, 0, 1).network.widths == [2, 2, 1]


def test_data_outside_the_domain_is_no_observation():
    network = dense(linear([[1.0], [1.0]], [0, 0.5]), linear([[1, 1]]))
    result = compressed(network, 0, 1, data=np.array([[-100.0], [0.5]]))
    assert result.deviation.observed_float32 <= 1e-6


@pytest.mark.parametrize(
    "option", [{"tolerance": "none"}, {"rewrites": "some"}, {"evidence": "rumour"}, {"method": "magic"}]
)
def test_options_that_do_not_exist_are_refused(option):
    with pytest.raises(InputError):
        relutrim.compress(small_module(), relutrim.Box(0, 1), **option)


# In float32, as users run it.


def runtime(path, x):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0].astype(np.float64)


def merging() -> Network:
    """A 20-dimensional layer whose 40 active neurons have rank 20."""
    random = np.random.default_rng(3)
    active = random.normal(size=(40, 20)).astype(np.float32)
    unstable = random.normal(size=(10, 20)).astype(np.float32)
    bias = [*np.ceil(np.abs(active).sum(1)), *(-unstable.sum(1) / 2)]
    return dense(
        linear(np.vstack([active, unstable]), np.float32(bias)),
        linear(np.float32(random.normal(size=(30, 50)) / 7), np.float32(random.normal(size=30))),
        linear(np.float32(random.normal(size=(5, 30)) / 5)),
        dtype="float32",
    )


@pytest.mark.parametrize("which", ["demo", "merging"])
def test_in_float32_both_agree_within_the_originals_own_rounding(tmp_path, which):
    network = relutrim.load(relutrim.demo_model()) if which == "demo" else merging()
    tolerance = "exact" if which == "demo" else 1e-5
    result = relutrim.compress(network, relutrim.Box(0, 1), tolerance=tolerance)
    assert result.network.neurons < network.neurons
    if which == "merging":
        assert "carry-linear" in [step.rewrite for step in result.steps]
        assert result.network.widths[1] <= 30
    relutrim.save(network, tmp_path / "original.onnx")
    result.save(tmp_path / "smaller.onnx")
    x = np.random.default_rng(0).random((512, network.input.size), dtype=np.float32)
    shaped = x.reshape(-1, *network.input.shape)
    before, after = (runtime(tmp_path / name, shaped) for name in ("original.onnx", "smaller.onnx"))
    truth = network(torch.as_tensor(x, dtype=torch.float64)).numpy()
    own = np.abs(before.reshape(truth.shape) - truth).max()
    assert np.abs(after - before).max() <= 8 * own
    assert result.deviation.observed_float32 <= 8 * result.deviation.original_float32_error


def test_a_certificate_that_did_not_get_done_in_time_is_warned_of():
    with pytest.warns(UserWarning, match=r"no certificate was made: time was up"):
        result = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1), certificate=True, time_limit=0)
    assert result.certificate is None


def test_where_time_is_up_the_bound_on_float32_is_left_out_and_that_is_said():
    result = relutrim.compress(small_module().eval(), relutrim.Box(0, 1), time_limit=0)
    assert not result.unchanged
    assert result.deviation.proven_float32 is None
    assert "no time was left for the bound on both networks in float32" in result.stability.remarks
    unlimited = relutrim.compress(small_module().eval(), relutrim.Box(0, 1), time_limit=None)
    assert unlimited.deviation.proven_float32 is not None
    assert not unlimited.stability.remarks
