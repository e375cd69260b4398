"""Distributed SGD for clusters that are uneven, unsteady and poorly connected.

Your own PyTorch loop: `join` a job, `Worker.prepare` model, optimizer and loader, and train as on one machine. `simulate` and
`threads` run the same function on a simulated cluster and on threads of this process. `fit` trains with a gradient that is a
function: numpy, JAX, anything.

Importing this package imports neither PyTorch nor numpy.
"""

from ._paceline import version as _version
from .errors import Lost, PacelineError, Refused
from .fit import fit
from .joining import join
from .optimizers import SGD, AdamW
from .outcome import Outcome
from .stage import simulate, threads
from .worker import Status, Worker

__version__ = _version()

__all__ = [
    "SGD",
    "AdamW",
    "Lost",
    "Outcome",
    "PacelineError",
    "Refused",
    "Status",
    "Worker",
    "__version__",
    "fit",
    "join",
    "simulate",
    "threads",
]
