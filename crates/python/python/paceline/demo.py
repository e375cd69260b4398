"""Trains handwritten digits with numpy on a simulated cluster with stragglers: `python -m paceline.demo`."""

import importlib.util
import sys
from typing import Any

from . import _paceline
from .fit import fit
from .optimizers import SGD
from .outcome import Outcome

__all__ = ["digits", "main", "train"]

FEATURES, HIDDEN, CLASSES = 64, 32, 10


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The 8 x 8 digits that come with the engine: (inputs, labels) to train on, and to test on."""
    import numpy

    sets = []
    for inputs, labels in _paceline.digits():
        rows = numpy.frombuffer(memoryview(inputs), dtype=numpy.float32).reshape(-1, FEATURES)
        sets.append((rows, numpy.array(labels, dtype=numpy.int64)))
    return sets[0], sets[1]


def initial(seed: int = 1) -> Any:
    """The parameters of a network with one hidden layer."""
    import numpy

    dice = numpy.random.default_rng(seed)
    first = dice.normal(0.0, (2.0 / FEATURES) ** 0.5, FEATURES * HIDDEN)
    second = dice.normal(0.0, (1.0 / HIDDEN) ** 0.5, HIDDEN * CLASSES)
    parts = [first, numpy.zeros(HIDDEN), second, numpy.zeros(CLASSES)]
    return numpy.concatenate(parts).astype(numpy.float32)


def forward(params: Any, x: Any) -> tuple[Any, ...]:
    """The layers' weights, the hidden activations and the logarithms of the classes' probabilities."""
    import numpy

    at = FEATURES * HIDDEN
    w1, b1 = params[:at].reshape(FEATURES, HIDDEN), params[at : at + HIDDEN]
    rest = params[at + HIDDEN :]
    w2, b2 = rest[: HIDDEN * CLASSES].reshape(HIDDEN, CLASSES), rest[HIDDEN * CLASSES :]
    hidden = numpy.maximum(x @ w1 + b1, 0.0)
    logits = hidden @ w2 + b2
    logits = logits - logits.max(axis=1, keepdims=True)
    return w2, hidden, logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def gradient(params: Any, batch: tuple[Any, Any]) -> tuple[Any, float]:
    """The sum of the samples' gradients of the cross entropy, and the sum of their losses."""
    import numpy

    x, y = batch
    w2, hidden, logs = forward(params, x)
    rows = numpy.arange(len(y))
    error = numpy.exp(logs)
    error[rows, y] -= 1.0
    back = (error @ w2.T) * (hidden > 0.0)
    parts = [x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
    return numpy.concatenate([part.reshape(-1) for part in parts]), float(-logs[rows, y].sum())


def evaluate(params: Any, batch: tuple[Any, Any]) -> tuple[float, int]:
    """The sum of the losses, and how many samples were classified correctly."""
    import numpy

    x, y = batch
    logs = forward(params, x)[2]
    return float(-logs[numpy.arange(len(y)), y].sum()), int((logs.argmax(axis=1) == y).sum())


def train(strategy: str, **options: Any) -> Outcome:
    """Trains with one strategy; options are those of `paceline.fit`."""
    to_train, to_test = digits()
    plan: dict[str, Any] = {"scenario": "stragglers", "workers": 8, "batch": 8, "epochs": 5}
    plan |= {"optimizer": SGD(0.1, momentum=0.9), "evaluate": evaluate, "test": to_test}
    return fit(gradient, initial(), to_train, strategy=strategy, **(plan | options))


def main() -> None:
    """Compares three strategies."""
    if importlib.util.find_spec("numpy") is None:
        sys.exit("paceline: the demo computes with numpy, which is not installed: pip install numpy")
    print("Handwritten digits, a numpy network, 8 simulated workers of which some are slow:\n")
    print(f"{'strategy':10}{'virtual seconds':>16}{'busy':>8}{'accuracy':>10}")
    for strategy in ("ssgd", "dbs", "adpsgd"):
        outcome = train(strategy)
        accuracy = outcome.accuracy or 0.0
        print(f"{strategy:10}{outcome.seconds:>16.3f}{outcome.utilization:>8.0%}{accuracy:>10.1%}")


if __name__ == "__main__":
    main()
