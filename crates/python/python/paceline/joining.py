"""How a process becomes a worker of a job."""

import os
from typing import Any

from .cluster import OnCluster
from .errors import Refused
from .launchers import find_launcher
from .offer import Options
from .place import Alone, OnStage, Place
from .stage import here
from .worker import Worker

__all__ = ["join", "on_cluster"]


def join(
    *,
    strategy: str | None = None,
    epochs: float | None = None,
    batch_total: int | None = None,
    batch_max: int | None = None,
    batch_fixed: int | None = None,
    batch_reference: float | None = None,
    seed: int | None = None,
    choices: dict[str, Any] | None = None,
    checkpoints: str | dict[str, Any] | None = None,
    resume: str | None = None,
    journal: str | None = None,
) -> Worker:
    """Makes this process, or this thread of `simulate` and `threads`, a worker of a job.

    Without a cluster around it the process is the only worker: `python train.py` works as it is. Under `paceline join HOST -- python
    train.py` it joins that coordinator, whose job decides strategy, epochs, batch and seed: leave them out, or give the same. Under
    torchrun, srun and mpirun the first process runs the coordinator, and the number of workers is fixed.

    `strategy` (default: ssgd) is a name that `paceline strategies` lists; `choices` gives an algorithm axis by axis, as in a job file. The batch
    of a worker is the loader's `batch_size`, and the total batch `batch_size` times the workers, or `batch_total`.
    `batch_max` is the most samples that fit the device: larger shares come in pieces (`for step in loader.steps()`).
    `batch_fixed` makes all pieces exactly so large, for compiled models and CUDA graphs. `batch_reference` is the total batch that
    the learning rate is meant for, for strategies that rescale it.

    `checkpoints` is a folder, or a dict with `folder`, `rounds`, `minutes` and `keep`; `resume` is such a folder to continue from.
    """
    for name, value in (("batch_total", batch_total), ("batch_max", batch_max), ("batch_fixed", batch_fixed)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise Refused(f"{name} = {value!r}: give a whole number above zero")
    if batch_max is not None and batch_fixed is not None:
        raise Refused("batch_max and batch_fixed both say how large a piece is: give one")
    seat = here()
    if seat is not None and seat.stage.strategy is not None:
        strategy, choices = seat.stage.strategy, None
    saved = {"folder": checkpoints} if isinstance(checkpoints, str) else checkpoints
    given: dict[str, Any] = {
        "strategy": strategy,
        "epochs": None if epochs is None else float(epochs),
        "batch_total": batch_total,
        "seed": seed,
        "choices": choices,
        "batch_reference": batch_reference,
    }
    options = Options(**{name: value for name, value in given.items() if value is not None})
    place: Place
    cluster = on_cluster(journal) if seat is None else None
    if seat is not None:
        place = OnStage(seat)
    elif cluster is None:
        place = Alone(journal, needs_numbers=saved is not None or resume is not None)
    else:
        place = cluster
        if resume is not None or (saved is not None and cluster.job is not None):
            raise Refused("checkpoints are the coordinator's: give --checkpoints and --resume to `paceline coordinate`")
        if cluster.job is not None:
            options = cluster.options(given)
    return Worker(place, options, batch_max=batch_max, batch_fixed=batch_fixed, checkpoints=saved, resume=resume)


def on_cluster(journal: str | None) -> OnCluster | None:
    """The cluster that this process was started in, as its environment says; `None`: in none."""
    coordinator = os.environ.get("PACELINE_JOIN")
    if coordinator is not None:
        insecure = os.environ.get("PACELINE_INSECURE") == "1"
        return OnCluster(coordinator, os.environ.get("PACELINE_TOKEN", ""), insecure=insecure)
    launched = find_launcher(os.environ)
    return None if launched is None else OnCluster(None, None, launched=launched, journal=journal)
