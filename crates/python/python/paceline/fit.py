"""Trains with a gradient that is a function of Python."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from . import _paceline
from .errors import Refused
from .optimizers import SGD, Optimizer
from .outcome import Outcome

__all__ = ["fit"]


def fit(
    gradient: Callable[[Any, Any], tuple[Any, ...]],
    initial: Any,
    dataset: Any,
    *,
    strategy: str = "ssgd",
    on: str = "simulate",
    workers: int = 4,
    batch: int = 16,
    epochs: float = 1.0,
    optimizer: Optimizer = SGD(0.1),
    seed: int = 1,
    schedule: str | dict[str, Any] = "constant",
    choices: dict[str, Any] | None = None,
    scenario: str | dict[str, Any] = "uniform",
    speeds: Sequence[float] = (),
    evaluate: Callable[[Any, Any], tuple[float, int]] | None = None,
    test: Any = None,
    checkpoints: str | None = None,
    resume: str | None = None,
) -> Outcome:
    """Trains a model that is a flat vector and a function.

    `gradient(params, batch)` gets the parameters as a read-only float32 array and the samples of a batch, and returns
    `(grad_sum, loss_sum)`, both summed over the batch; or `(grad_sum, loss_sum, weight)` if the sums are to be divided by
    something else than the number of samples, such as tokens.

    `initial` is a float32 array of the parameters to begin with. `dataset` is an array, a tuple of arrays of the same length
    (then a batch is a tuple), or anything with `len()` and `[index]` (then a batch is a list).

    `on="cluster"` makes this process a worker of the cluster that it was started in (`paceline join`, torchrun, srun, mpirun).
    `on="simulate"` trains on a simulated cluster (`scenario`: a name that `paceline scenarios` lists, the path of a file, or a
    dict); `on="threads"` on threads of this process, whose `speeds` can be emulated. `evaluate(params, batch)` returns
    `(loss_sum, correct)` on samples of `test`, at the end of every epoch.
    """
    import numpy

    start = numpy.ascontiguousarray(initial, dtype=numpy.float32)
    if start.ndim != 1 or start.size == 0:
        raise Refused(f"initial has the shape {start.shape}: give the parameters as one flat array")
    if on not in ("simulate", "threads", "cluster"):
        raise Refused(f'on={on!r}: choose "simulate", "threads" or "cluster"')
    if resume is not None and on != "threads":
        raise Refused('resume: only a run on threads is resumed here; choose on="threads", or resume a cluster\'s coordinator')
    read, samples = _reader(dataset)
    flat = _paceline.Flat(start.size)
    numpy.frombuffer(memoryview(flat), dtype=numpy.float32)[:] = start

    def at(params: Any, indices: list[int]) -> tuple[Any, float, float | None]:
        answer = gradient(params, read(indices))
        if not isinstance(answer, tuple) or len(answer) not in (2, 3):
            raise Refused("gradient() must return (grad_sum, loss_sum), or (grad_sum, loss_sum, weight)")
        total = numpy.ascontiguousarray(answer[0], dtype=numpy.float32).reshape(-1)
        weight = float(answer[2]) if len(answer) == 3 else None
        return total, float(answer[1]), weight

    def called(params: Any, indices: list[int]) -> tuple[Any, float, float | None]:
        return at(numpy.frombuffer(params, dtype=numpy.float32), indices)

    if on == "cluster":
        given = {"strategy": strategy, "epochs": float(epochs), "seed": seed, "choices": choices}
        return _on_cluster(at, start, flat, samples, batch, optimizer, given)
    scored: Callable[[Any, list[int]], tuple[float, int]] | None = None
    tested = 0
    if evaluate is not None:
        if test is None:
            raise Refused("evaluate needs samples: give test=")
        read_test, tested = _reader(test)
        judge = evaluate

        def score(params: Any, indices: list[int]) -> tuple[float, int]:
            loss, correct = judge(numpy.frombuffer(params, dtype=numpy.float32), read_test(indices))
            return float(loss), int(correct)

        scored = score

    job: dict[str, Any] = {
        "strategy": strategy,
        "model": "function",
        "data": "yours",
        "epochs": epochs,
        "batch": batch,
        "seed": seed,
        "learning_rate": optimizer.lr,
        "optimizer": {"rule": optimizer.rule()},
        "schedule": schedule,
        "choices": choices,
    }
    if checkpoints is not None:
        if on != "threads":
            raise Refused('checkpoints: a simulated run is not saved, and a cluster by its coordinator; choose on="threads"')
        job["checkpoints"] = {"folder": checkpoints}
    spec = {
        "job": job,
        "workers": workers,
        "samples": samples,
        "params": start.size,
        "tensors": [{"name": "params", "shape": [start.size]}],
        "resume": resume,
    }
    place: dict[str, Any] = {"on": on, "speeds": list(speeds), "test": tested}
    if on == "simulate":
        place["scenario"] = scenario if isinstance(scenario, str) else json.dumps({"workers": workers} | scenario)
    return Outcome.of(_paceline.fit(json.dumps(spec), json.dumps(place), flat, called, scored))


def _on_cluster(
    gradient: Any, start: Any, flat: _paceline.Flat, samples: int, batch: int, optimizer: Optimizer, given: dict[str, Any]
) -> Outcome:
    """Trains as a worker of the cluster that this process is in."""
    from .function_host import FunctionHost
    from .joining import on_cluster
    from .offer import Bring, Offer, Options

    place = on_cluster(None)
    if place is None:
        raise Refused(
            'on="cluster": this process is in none; start it with `paceline join HOST -- python ...`, or under torchrun, srun or mpirun'
        )
    options = Options(**given) if place.job is None else place.options(given)
    tensors = [{"name": "params", "shape": [start.size], "dtype": "float32", "memory": None, "is_steps": False}]
    offer = Offer(options, samples, batch, start.size, start.size, tensors, [], optimizer.lr, optimizer.rule())
    host = FunctionHost(place, gradient, start, _paceline.Order(options.seed, samples, True), optimizer)
    host.run(place.enter(Bring(offer, flat)))
    outcome = place.leave()
    if outcome is None:
        outcome = Outcome({"strategy": options.strategy, "samples": 0, "loss": None, "accuracy": None, "utilization": [], "journal_hash": ""})
    outcome.params = host.params
    return outcome


def _reader(dataset: Any) -> tuple[Callable[[list[int]], Any], int]:
    """How samples are read by their indices, and how many there are."""
    import numpy

    if isinstance(dataset, tuple):
        parts = [numpy.asarray(part) for part in dataset]
        if not parts or any(len(part) != len(parts[0]) for part in parts):
            raise Refused("the arrays of the dataset differ in length: give one row for each sample in all of them")
        return lambda indices: tuple(part[indices] for part in parts), len(parts[0])
    try:
        count = len(dataset)
    except TypeError:
        raise Refused("the dataset has no length: give an array, a tuple of arrays, or an object with len()") from None
    if isinstance(dataset, numpy.ndarray):
        return lambda indices: dataset[indices], count
    if hasattr(dataset, "__getitems__"):
        return lambda indices: dataset.__getitems__(indices), count
    return lambda indices: [dataset[index] for index in indices], count
