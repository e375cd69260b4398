"""What a worker brings to a job: its options, the shape of its model and of its data. Members compare it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from . import _paceline
from .errors import Refused

__all__ = ["Bring", "Offer", "Options"]


@dataclass(frozen=True)
class Options:
    """The arguments of `paceline.join` that all members must agree on."""

    strategy: str = "ssgd"
    epochs: float = 1.0
    batch_total: int | None = None
    seed: int = 1
    choices: dict[str, Any] | None = None
    batch_reference: float | None = None


@dataclass(frozen=True)
class Offer:
    """What a worker brings to a job."""

    options: Options
    #: Samples of one epoch: pieces, if `batch_fixed` is given.
    samples: int
    batch: int
    params: int
    size: int
    #: For each tensor of the replica: name, shape, type, and the order of its memory.
    tensors: list[dict[str, Any]] = field(default_factory=list)
    #: For each frozen parameter: name and a hash of its numbers.
    frozen: list[tuple[str, str]] = field(default_factory=list)
    learning_rate: float = 0.1
    #: The optimizer that a center uses, if the strategy has one that applies gradients.
    rule: dict[str, Any] | None = None
    #: The positions that were learned before this job, as `Worker.load_state_dict` says.
    done: list[tuple[int, int]] = field(default_factory=list)

    @property
    def samples_before(self) -> int:
        """How many they are."""
        return sum(end - start for start, end in self.done)

    def spec(self, workers: int, checkpoints: dict[str, Any] | None, resume: str | None) -> dict[str, Any]:
        """The job, as the engine reads it."""
        options = self.options
        job: dict[str, Any] = {
            "strategy": options.strategy,
            "model": "own",
            "data": "own",
            "epochs": options.epochs,
            "batch": None if options.batch_total else self.batch,
            "batch_total": options.batch_total,
            "batch_reference": options.batch_reference,
            "seed": options.seed,
            "learning_rate": self.learning_rate,
            "schedule": "constant",
            "choices": options.choices,
            "checkpoints": checkpoints,
        }
        job["optimizer"] = {"rule": self.rule or {"kind": "sgd", "momentum": 0.0}}
        tensors = [
            {"name": t["name"], "shape": t["shape"], "memory": t["memory"], "is_steps": t["is_steps"]}
            for t in self.tensors
        ]
        return {
            "job": job,
            "workers": workers,
            "samples": self.samples,
            "samples_before": self.samples_before,
            "params": self.params,
            "tensors": tensors,
            "resume": resume,
        }

    def check_same(self, other: "Offer") -> None:
        """Refuses a worker whose offer differs from this one; the message says in what."""
        for name, mine in asdict(self.options).items():
            theirs = getattr(other.options, name)
            if mine != theirs:
                raise Refused(f"paceline.join: {name} is {theirs!r} here and {mine!r} at another worker: give the same")
        for mine, theirs in zip(self.tensors, other.tensors, strict=False):
            if mine != theirs:
                raise Refused(
                    f"the model differs from that of another worker: {_shown(theirs)} here, {_shown(mine)} there; "
                    "build the same model everywhere"
                )
        if len(self.tensors) != len(other.tensors):
            more = max(self.tensors, other.tensors, key=len)[min(len(self.tensors), len(other.tensors))]
            raise Refused(
                f"the model differs from that of another worker: only one of them has {_shown(more)}; "
                "build the same model everywhere"
            )
        for mine_frozen, theirs_frozen in zip(self.frozen, other.frozen, strict=False):
            if mine_frozen != theirs_frozen:
                raise Refused(
                    f"the frozen parameter {theirs_frozen[0]} has other numbers than at another worker: frozen parameters "
                    "are not exchanged, so load the same file everywhere"
                )
        if self.done != other.done:
            raise Refused(
                f"this worker continues after {other.samples_before} samples, and another one after {self.samples_before}: give "
                "worker.load_state_dict the same state everywhere"
            )
        for name in ("samples", "batch"):
            mine_count, theirs_count = getattr(self, name), getattr(other, name)
            if mine_count != theirs_count:
                what = "samples in the data set" if name == "samples" else "as the loader's batch_size"
                raise Refused(f"{theirs_count} {what} here, {mine_count} at another worker: give all the same")


@dataclass(frozen=True)
class Bring:
    """An offer, the parameters that the job begins with if this worker is the first one, and where it is saved."""

    offer: Offer
    initial: _paceline.Flat
    checkpoints: dict[str, Any] | None = None
    resume: str | None = None

    def spec(self, workers: int) -> dict[str, Any]:
        """The job, as the engine reads it."""
        return self.offer.spec(workers, self.checkpoints, self.resume)


def _shown(tensor: dict[str, Any]) -> str:
    order = "" if tensor["memory"] is None else ", channels last"
    return f"{tensor['name']} {tuple(tensor['shape'])} {tensor['dtype']}{order}"
