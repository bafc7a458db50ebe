"""Gradient steps in plain numpy: exchanges and faults are tested without TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.step import Batch, OnReady, StepResult

FEATURES, CLASSES = 13, 5


class SoftmaxStep:
    """Softmax regression with a hidden linear layer, in float32; its state averages the inputs as batch norm does."""

    metric_names: tuple[str, ...] = ("accuracy",)

    def __init__(self, seconds: float = 0.0, jitter: float = 0.0, seed: int = 0, undivided: bool = False) -> None:
        self.layout = Layout.of([("hidden", (FEATURES, 7)), ("out", (7, CLASSES)), ("bias", (CLASSES,))])
        self.undivided = undivided
        self.state = np.zeros(FEATURES)
        self.poison: set[int] = set()
        self.runs = 0
        self.carried: list[np.ndarray] = []
        self._seconds, self._jitter = seconds, jitter
        self._random = np.random.default_rng(seed)
        self._gradient = np.zeros(self.layout.size, np.float32)

    def initial(self, seed: int = 0) -> np.ndarray:
        random = np.random.default_rng(seed)
        return self.layout.pack([random.normal(0, 0.3, e.shape).astype(np.float32) for e in self.layout.entries])

    def carry_on(self, values: Sequence[np.ndarray], seeds: bool = True) -> None:
        self.carried = list(values)

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        time.sleep(self._seconds + self._jitter * self._random.random())
        hidden, out, _ = self.layout.views(parameters)
        x, y = batch
        n = len(y)
        h = x @ hidden
        p, loss, correct = self._forward(parameters, batch)
        p[np.arange(n), y] -= 1
        if not self.undivided:
            p /= np.float32(n)
        self.layout.pack([x.T @ (p @ out.T), h.T @ p, p.sum(axis=0)], self._gradient)
        if self.runs in self.poison:
            self._gradient[3] = np.nan
        self.runs += 1
        self.state = 0.9 * self.state + 0.1 * x.mean(axis=0)
        weight = 1.0 if self.undivided else float(n)
        finite = bool(np.isfinite(self._gradient).all())
        view = self._gradient.view()
        view.flags.writeable = False
        return StepResult(view, weight, np.array([loss * n, weight, n, correct]), self.state, finite)

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        _, loss, correct = self._forward(parameters, batch)
        return np.array([loss * batch.size, batch.size, batch.size, correct])

    def _forward(self, parameters: np.ndarray, batch: Batch) -> tuple[np.ndarray, float, int]:
        hidden, out, bias = self.layout.views(parameters)
        x, y = batch
        z = (x @ hidden) @ out + bias
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(y)), y] + 1e-30).mean()
        return p, float(loss), int((z.argmax(axis=1) == y).sum())


class RowStep(SoftmaxStep):
    """Sees two features of each batch, as if the hidden layer were an embedding: of its gradient two rows are not zero.

    ``tells`` says whether the step's results tell which.
    """

    tells = True

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        seen = np.random.default_rng(int(1e6 * abs(float(batch.inputs[0, 0])))).permutation(FEATURES)[:2]
        inputs = np.zeros_like(batch.inputs)
        inputs[:, seen] = batch.inputs[:, seen]
        result = super().run(parameters, Batch(inputs, batch.targets), on_ready)
        if self.tells:
            result.rows = {0: np.sort(seen).astype(np.int64)}
        return result


class Samples:
    """Labelled points, whose order in an epoch is a fixed permutation, shifted by the epoch."""

    def __init__(self, count: int, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.inputs = random.normal(size=(count, FEATURES)).astype(np.float32)
        self.targets = random.integers(0, CLASSES, count)

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, ticket: Ticket) -> Batch:
        places = (np.arange(ticket.first, ticket.first + ticket.size) * 7 + ticket.epoch) % len(self)
        return Batch(self.inputs[places], self.targets[places])
