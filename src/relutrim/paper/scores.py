"""How good the networks of a batch are: accuracy of classifiers, and the loss, on training and test rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.paper.dataset import Dataset
from relutrim.paper.feed import Rows, as_tensor
from relutrim.paper.fit import Fit, losses_of, reproducible

_ROWS = 1000


@dataclass(frozen=True)
class Scores:
    """Of one network. Autoencoders have no accuracy. A number that is no number any more is None."""

    train_loss: float | None
    test_loss: float | None
    train_accuracy: float | None = None
    test_accuracy: float | None = None


def scores(fit: Fit, dataset: Dataset) -> list[Scores]:
    """Per network; on the training rows as they are, without augmentation."""
    train_loss, train_right = _measure(fit, fit.feed.x, fit.feed.y)
    test = as_tensor(dataset.x_test, fit.device), as_tensor(dataset.y_test, fit.device)
    test_loss, test_right = _measure(fit, *test)
    if fit.rebuilds:
        return [Scores(_number(a), _number(b)) for a, b in zip(train_loss, test_loss, strict=True)]
    columns = zip(train_loss, test_loss, train_right, test_right, strict=True)
    return [Scores(*(_number(value) for value in values)) for values in columns]


def _number(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


@torch.no_grad()
def _measure(fit: Fit, x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    """Mean loss and share of right answers of every network; one wait for the device, at the end."""
    networks = fit.stack.networks
    rows: Rows = fit.feed.rows
    loss = torch.zeros(networks, dtype=torch.float64, device=fit.device)
    right = torch.zeros(networks, dtype=torch.int64, device=fit.device)
    with reproducible():
        for at in range(0, len(x), _ROWS):
            some, labels = x[at : at + _ROWS], y[at : at + _ROWS]
            seen = rows.seen(rows.raw(some))
            seen = seen.flatten(1) if fit.flat else seen
            seen = seen.expand(networks, *seen.shape)
            answers = labels.expand(networks, -1)
            outputs = fit.stack.forward(seen)
            loss += losses_of(outputs, seen if fit.rebuilds else answers).double().sum(1)
            if not fit.rebuilds:
                right += (outputs.argmax(2) == answers).sum(1)
    return (loss / len(x)).tolist(), (right.double() / len(x)).tolist()
