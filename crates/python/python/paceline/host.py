"""The thread that holds a worker's model, optimizer and data: it answers what the worker asks.

The user's loop drives it at three points. The loader asks for the next batch; the end of `backward()` hands the gradient over and
waits for the sum over all workers; `optimizer.step()` makes the step that was asked for.
"""

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import _paceline
from .errors import Refused
from .keeping import pack, unpack
from .loader import Loader, Piece, Samples
from .offer import Bring, Offer, Options
from .place import Place
from .replica import LocalReplica, Replica
from .resuming import Before, Rest, Spans, joined
from .stepping import State, wrap_optimizer
from .translate import center_rule

__all__ = ["Host"]

_log = logging.getLogger("paceline")
#: Algorithms whose members all know which samples are learned.
_SYNCHRONOUS = ("all_reduce", "delayed", "periodic_average")


class Host:
    """Connects a model, an optimizer and a loader to a worker's line."""

    def __init__(
        self,
        place: Place,
        options: Options,
        kept: dict[str, Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: "torch.utils.data.DataLoader[Any]",
        piece: tuple[int | None, int | None],
        weight: Callable[[Any], Any] | None,
        order: Callable[[int], Any] | None,
        before: Before,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise Refused("LBFGS evaluates the loss several times in a step: choose an optimizer that steps once for each gradient")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise Refused(f"{type(optimizer).__name__} is no torch.optim.Optimizer")
        recipes = {name: (algorithm, is_open) for name, _, algorithm, is_open in _paceline.recipes()}
        algorithm, is_open = recipes.get(options.strategy, ("", False))
        if options.choices is not None:
            algorithm = str(options.choices.get("strategy", algorithm))
            shares = options.choices.get("shares", "even")
            is_open = shares == "open" or (isinstance(shares, dict) and shares.get("kind") == "open")
        self.place = place
        self.model = model
        self.optimizer = optimizer
        self.weigh = weight
        is_local = not place.needs_numbers and algorithm == "all_reduce" and options.strategy != "qsgd" and options.choices is None
        self.replica = LocalReplica(model, optimizer) if is_local else Replica(model, optimizer)
        self.samples = Samples(loader, options.seed, piece[1], order, is_simulated=place.is_simulated)
        self.loader = Loader(self, self.samples)
        self.batch_max = piece[0]
        #: Why a flat loop cannot be used; `None` if it can.
        self.needs_steps: str | None = None
        if is_open:
            self.needs_steps = f"strategy = {options.strategy}: its batches grow while a sum is under way"
        elif piece[0] is not None or piece[1] is not None:
            self.needs_steps = f"batch_{'max' if piece[0] is not None else 'fixed'}: a share may come in several pieces"
        self.line: _paceline.Line
        self.state = State.IDLE
        self.is_over = False
        self.epoch = before.epoch
        self.batches = 0
        self.updates = before.updates
        self.skipped = before.skipped
        self.factor = 1.0
        self.round = 0
        self.progress = 0.0
        self.members: list[int] = []
        self.total = int(math.floor(options.epochs * self.samples.per_epoch + 0.5))
        self._epochs = max(1, math.ceil(options.epochs))
        self._before = before
        if before.done:
            before.check(self.samples.per_epoch, piece[1], options.seed, self.total)
        self.samples.begin(Rest(before.done, self.total) if before.done else None)
        #: The samples in all members' replicas, the last share, and the shares of this round that are only in this replica.
        self._done: Spans = []
        self._spans: Spans = []
        self._alone: Spans = []
        self._is_alone = False
        self._options = options
        self._algorithm = algorithm
        self._kept = kept
        self._pending: _paceline.Ask | None = None
        #: The weight, samples, loss and seconds of what is computed.
        self._weight = 0.0
        self._loss: Any = None
        self._losses = 0.0
        self._took = 0.0
        self._since = 0.0
        self._ends_share = True
        self._piece_samples = 0
        self._piece_weight = 1.0
        self._is_repeated = False
        self._is_armed = False
        self._initial_state = copy.deepcopy(optimizer.state_dict())
        self._has_begun = False
        self._hook()

    # The job

    def offer(self) -> Offer:
        """What this worker brings to the job."""
        rule = center_rule(self.optimizer, self._options.strategy) if self._algorithm == "parameter_server" else None
        rates = [float(group["lr"]) for group in self.optimizer.param_groups if "lr" in group]
        # Adafactor and others may have no rate of their own; the engine needs a positive number for its clocks.
        rate = next((rate for rate in rates if math.isfinite(rate) and rate > 0.0), 1e-3)
        return Offer(
            self._options,
            self.samples.per_epoch,
            self.samples.batch,
            self.replica.learned,
            self.replica.size,
            self.replica.tensors(),
            self.replica.frozen_hashes(),
            rate,
            rule,
            self._before.done,
        )

    def initial(self) -> _paceline.Flat:
        """The parameters that the job begins with, if this worker is its first one."""
        return self.replica.export()

    def begin(self, bring: Bring) -> None:
        """Waits until the job has begun."""
        self.line = self.place.enter(bring)
        if self.place.is_simulated:
            torch.set_num_threads(1)

    def state_dict(self) -> dict[str, Any]:
        """See `Worker.state_dict`."""
        if self._algorithm not in _SYNCHRONOUS:
            raise Refused(
                f"worker.state_dict with strategy = {self._options.strategy}: no worker knows which samples the others have learned; "
                "use the checkpoints of join(checkpoints=...) or of the coordinator"
            )
        if self.state not in (State.IDLE, State.NOTHING):
            raise Refused("worker.state_dict in the middle of an update: call it after optimizer.step(), and save the model there, too")
        mine = joined(self._done, self._alone)
        done = joined(self._before.done, self.samples.rest.spans(mine) if self.samples.rest is not None else mine)
        kept = {name: one.state_dict() for name, one in self._kept.items()}
        counts = (self._options.seed, self.epoch, self.updates, self.skipped)
        return Before(done, self.samples.per_epoch, self.samples.fixed, *counts, kept).state_dict()

    def close(self) -> None:
        """Leaves the job."""
        self.samples.close()
        if hasattr(self, "line"):
            self.line.close()

    def look(self) -> None:
        """Waits until it is known where the job stands, if nothing is known yet."""
        if not self._has_begun:
            self._next()

    # Questions

    def _next(self) -> _paceline.Ask | None:
        """The next question that the user's loop must answer: compute or apply. `None`: the job is over."""
        if self._pending is None and not self.is_over:
            self._pending = self._wait()[0]
        return self._pending

    def _wait(self) -> tuple[_paceline.Ask | None, bool]:
        """Answers questions until one is for the user's loop; also says whether parameters were loaded meanwhile."""
        has_loaded = False
        while True:
            with self.place.away():
                ask = self.line.next()
            self._has_begun = True
            if ask is None:
                if self._ended():
                    return None, has_loaded
                continue
            if ask.kind == "compute":
                self._at(ask)
                return ask, has_loaded
            if ask.kind == "apply":
                self.factor = ask.factor
                return ask, has_loaded
            if ask.kind == "export":
                self.line.export(self.replica.export())
            elif ask.kind == "load":
                has_loaded = True
                self._load(ask.state)
            else:
                self.line.keep(self._state())

    def _at(self, ask: _paceline.Ask) -> None:
        if ask.round != self.round:
            self._alone = []
        self.round, self.members, self._done = ask.round, ask.members, ask.done
        self.progress = min(1.0, (self._before.samples + ask.samples) / self.total)

    def _ended(self) -> bool:
        """After the line has ended: whether the job is over for this worker. If not, it lives on with another line."""
        line = self.place.renew(self.line)
        if line is not None:
            _log.warning("worker %d was counted as lost, and continues as worker %d", self.line.worker, line.worker)
            self.line = line
            return False
        self.is_over = True
        self.state = State.NOTHING if self.state is not State.IDLE else State.IDLE
        return True

    def _state(self) -> bytes:
        kept = {name: one.state_dict() for name, one in self._kept.items()}
        state = {
            "optimizer": self.optimizer.state_dict(),
            "kept": kept,
            "epoch": self.epoch,
            "integers": self.replica.integers(),
        }
        return pack(state)

    def _load(self, state: bytes | None) -> None:
        self.line.replica(self.replica.room())
        self.replica.load()
        if state is not None and len(state) > 0:
            found = unpack(bytes(state))
            self._adopt(found)
        elif state is not None and self.updates > 0:
            # The job starts over.
            self.optimizer.load_state_dict(self._initial_state)
            self.epoch = self._before.epoch
        self.line.done()

    def _adopt(self, found: Any) -> None:
        if set(found["kept"]) != set(self._kept):
            here, there = sorted(self._kept), sorted(found["kept"])
            raise Refused(f"worker.keep was called with {here} here and with {there} at another worker: keep the same")
        self.optimizer.load_state_dict(found["optimizer"])
        for name, one in self._kept.items():
            one.load_state_dict(found["kept"][name])
        self.epoch = int(found["epoch"])
        integers = self.replica.integers()
        for name, value in found["integers"].items():
            if name in integers:
                integers[name].copy_(value)

    # The loader's side

    def next_share(self) -> "Iterable[Piece] | None":
        """The pieces of the next share of a flat loop; `None` when the epoch has ended."""
        self._finish_update()
        ask = self._next()
        if ask is None or self._ends_epoch(ask):
            return None
        if ask.kind == "apply":
            # All samples of this update are with other workers.
            return self._repeat()
        self._pending = None
        pieces = self.samples.pieces(ask, None)
        self._began(ask)
        return pieces

    def next_step(self) -> bool:
        """Whether there is another update in this epoch; for `steps()`."""
        self._finish_update()
        ask = self._next()
        return ask is not None and not self._ends_epoch(ask)

    def next_pieces(self) -> "Iterable[Piece] | None":
        """More pieces of this update; `None` when there is something to apply, or nothing more to compute."""
        if self.state is State.COMPUTING:
            self._hand_over()
            ask, has_loaded = self._wait()
            self._pending = ask
            if ask is None or has_loaded:
                # A center has applied the gradient, or the job is over.
                self._nothing()
                return None
        ask = self._pending
        if ask is None:
            self._nothing()
            return None
        if ask.kind == "apply":
            self._pending = None
            self._show(ask)
            return None
        self._pending = None
        pieces = self.samples.pieces(ask, self.batch_max)
        self._began(ask)
        return pieces

    def yielding(self, samples: int, batch: Any, is_last: bool) -> None:
        """A piece is given to the user's loop."""
        self._piece_samples = samples
        self._piece_weight = float(samples) if self.weigh is None else float(self.weigh(batch))
        if not (math.isfinite(self._piece_weight) and self._piece_weight >= 0.0):
            raise Refused(f"weight() returned {self._piece_weight}: return a number that is not negative, such as a count of tokens")
        self._ends_share = is_last
        self._is_armed = False
        self._has_gradient = False
        self._since = time.perf_counter()

    def yielded(self) -> None:
        """The user's loop asks for the next piece: the last one must have had its backward()."""
        if self.state is State.COMPUTING and not self._has_gradient:
            raise Refused("a batch had no backward(): call loss.backward() once for every batch")

    def report_loss(self, value: Any) -> None:
        """The mean loss of the last piece; it is read when the gradient is handed over, so that a GPU does not wait for it."""
        self._loss = value.detach() if isinstance(value, torch.Tensor) else float(value)

    def _began(self, ask: _paceline.Ask) -> None:
        self.state = State.COMPUTING
        self.batches += 1
        self._weight = 0.0
        self._losses = 0.0
        self._took = 0.0
        self._spans = ask.spans
        self._share = sum(end - start for start, end in ask.spans)
        self._is_repeated = False
        self._has_gradient = False

    def _repeat(self) -> "Iterable[Piece]":
        """Has the user's loop run once more on its last batch, so that whatever stands between backward() and step() also runs
        for an update to which this worker contributes nothing. The gradient of the batch is thrown away."""
        last = self.samples.last
        if last is None:
            ask = self._pending
            assert ask is not None
            self._pending = None
            self._show(ask)
            self.optimizer.step()
            return []
        self.state = State.COMPUTING
        self.batches += 1
        self._is_repeated = True
        return [last]

    def _ends_epoch(self, ask: _paceline.Ask) -> bool:
        if ask.kind != "compute":
            return False
        epoch = min((self._before.samples + ask.samples) // self.samples.per_epoch, self._epochs - 1)
        if epoch > self.epoch:
            self.epoch += 1
            return True
        return False

    def _finish_update(self) -> None:
        """Before the next batch, the last update must be finished."""
        if self.state is State.COMPUTING:
            self.yielded()
            raise Refused("the loop over a step ended before its pieces did: compute all of them")
        if self.state is State.APPLY:
            if self.replica.is_finite():
                raise Refused(
                    "a batch was asked for before optimizer.step(): to accumulate gradients over several batches, give the "
                    "loader a larger batch_size, say join(batch_max=...), and loop over loader.steps()"
                )
            # A GradScaler leaves out a step whose gradients are not finite; all workers do, because they have the same.
            self.skipped += 1
            _log.info("round %d: the gradients are not finite, and the step was left out", self.round)
            self.applied(is_skipped=True)
        self.state = State.IDLE

    # The end of backward()

    def _hook(self) -> None:
        inner = getattr(self.model, "_orig_mod", self.model)

        def arm(_: Any) -> None:
            self._arm()

        def after_forward(_: Any, __: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            # The hook of an output runs in the outermost backward pass, also if layers are recomputed in passes of their own.
            for tensor in tree_leaves(output):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(arm)  # type: ignore[no-untyped-call]

        inner.register_forward_hook(after_forward)
        for p in self.replica.params:
            p.register_post_accumulate_grad_hook(arm)  # type: ignore[no-untyped-call]
        wrap_optimizer(self)

    def _arm(self) -> None:
        if not self._is_armed and self.state is not State.IDLE:
            self._is_armed = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    @torch.no_grad()
    def _end_of_backward(self) -> None:
        self._is_armed = False
        if self.is_over:
            return
        if self.state is not State.COMPUTING or self._has_gradient:
            raise Refused("backward() was called twice for one batch: add the losses and call backward() once")
        self._took += time.perf_counter() - self._since
        self._has_gradient = True
        if self._is_repeated:
            ask = self._pending
            assert ask is not None
            self._pending = None
            self._show(ask)
            return
        if self._piece_weight > 0.0:
            self.replica.hand(self.line, self._piece_weight)
            self._weight += self._piece_weight
            if self._loss is not None:
                self._losses += float(self._loss) * self._piece_weight
                self._loss = None
        if self.needs_steps is not None or self.loader.is_stepping:
            # The update ends in `next_pieces`.
            self.replica.clear()
            return
        self._hand_over()
        ask, _ = self._wait()
        if ask is not None and ask.kind == "apply":
            self._show(ask)
        else:
            self._pending = ask
            self._nothing()

    def _hand_over(self) -> None:
        """Answers with the gradient over the share."""
        self.replica.write_buffers()
        weight = self._weight
        if self.samples.fixed is not None and self.weigh is None:
            weight /= self.samples.fixed
        told = None if weight == self._share else weight
        took = self._took
        speeds = self.place.speeds
        if speeds:
            slower = max(speeds) / speeds[self.line.worker % len(speeds)]
            time.sleep(took * (slower - 1.0))
            took *= slower
        self.line.computed(self.replica.flat, self._share, told, self._losses, took)

    def _show(self, ask: _paceline.Ask) -> None:
        """Makes the mean over all workers' samples the gradient of the model."""
        self.replica.take(self.line)
        self._at(ask)
        self._is_alone = ask.is_alone
        self.state = State.APPLY

    def _nothing(self) -> None:
        """There is nothing to apply; `optimizer.step()` finds zeros and does nothing."""
        self.state = State.NOTHING
        self.replica.zero()

    # The end of an update

    def applied(self, *, is_skipped: bool = False) -> None:
        """The optimizer has made its step, or a GradScaler has left it out."""
        self.state = State.IDLE
        if self._is_alone:
            self._alone = joined(self._alone, self._spans)
        self.line.done(is_skipped)
