"""User loops for the tests: written as for one machine, with and without Paceline."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import paceline
import torch
import torch.nn.functional as F
from paceline import _paceline
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

TOTAL, SAMPLES, TOKENS = 24, 96, 6
UPDATES = 20
#: Seconds that a worker's loop takes longer for each sample, where speeds are emulated.
PAUSE = 0.0
#: Three workers that take about 16, 5 and 3 of 24 samples.
UNEVEN: dict[str, Any] = {"workers": 3, "compute": {"relative": [1.0, 3.2, 5.3], "jitter": 0.0}}


class Pictures(Dataset[Any]):
    """Noise with labels; it remembers which samples were read."""

    def __init__(self, samples: int = SAMPLES) -> None:
        dice = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 3, 8, 8, generator=dice)
        self.y = torch.randint(0, 10, (samples,), generator=dice)
        #: How many tokens of a sample count, for losses over tokens.
        self.lengths = torch.randint(1, TOKENS + 1, (samples,), generator=dice)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.x[index], self.y[index], self.lengths[index]


class Net(nn.Module):
    """A small network with what models have: convolutions, norms, tied and frozen weights."""

    def __init__(self, *, bn: bool = False, tied: bool = False, frozen: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm: nn.Module = nn.BatchNorm2d(8) if bn else nn.GroupNorm(2, 8)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        if tied:
            self.second.weight = self.first.weight
        self.head = nn.Linear(32, 10)
        self.recompute = recompute
        if frozen:
            self.first.weight.requires_grad_(False)

    def last(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = F.adaptive_avg_pool2d(x, 2).flatten(1)
        # Only the last layers: a callback that is armed in their inner pass would come before the first layers have gradients.
        return checkpoint(self.last, x, use_reentrant=True) if self.recompute else self.last(x)  # type: ignore[no-any-return]


@dataclass
class Variant:
    """A way in which users write loops."""

    net: dict[str, bool] = field(default_factory=dict)
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9
    )
    clip: bool = False
    scaler: bool = False
    autocast: bool = False
    scheduler: bool = False
    channels_last: bool = False
    compiled: bool = False
    model_zero: bool = False
    tokens: bool = False
    steps: bool = False
    batch_max: int | None = None
    #: Whether pieces must be computed as in the run to get the same numbers.
    in_pieces: bool = False
    #: Whether the optimizer divides gradients by their usual size.
    is_adaptive: bool = False


def _groups(model: nn.Module) -> torch.optim.Optimizer:
    parts = list(model.parameters())
    return torch.optim.SGD([{"params": parts[:3], "lr": 0.01}, {"params": parts[3:]}], 0.1, momentum=0.9)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)


VARIANTS = {
    "plain": Variant(),
    "adamw": Variant(optimizer=_adamw, is_adaptive=True),
    "groups": Variant(optimizer=_groups),
    "clip": Variant(clip=True),
    "scaler": Variant(scaler=True, clip=True),
    "autocast": Variant(autocast=True, in_pieces=True),
    "scheduler": Variant(scheduler=True),
    "channels_last": Variant(channels_last=True),
    "compiled": Variant(compiled=True),
    "recompute": Variant(net={"recompute": True}),
    "tied": Variant(net={"tied": True}),
    "frozen": Variant(net={"frozen": True}, optimizer=_adamw, is_adaptive=True),
    "model_zero": Variant(model_zero=True),
    "tokens": Variant(tokens=True),
    "pieces": Variant(steps=True, batch_max=3, clip=True),
}


def build(variant: Variant) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer, the same everywhere."""
    torch.manual_seed(0)
    model: nn.Module = Net(**variant.net)
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, variant.optimizer(model)


def loss_of(variant: Variant, model: Callable[..., Any], batch: Any) -> torch.Tensor:
    x, y, lengths = batch
    if PAUSE > 0.0:
        time.sleep(PAUSE * len(x))
    if variant.channels_last:
        x = x.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=variant.autocast):
        logits = model(x)
        if not variant.tokens:
            return F.cross_entropy(logits, y)
        # The first tokens of each sample count.
        counts = torch.arange(TOKENS) < lengths[:, None]
        losses = F.cross_entropy(logits, y, reduction="none")[:, None].expand(-1, TOKENS)
        return losses[counts].mean()


def weight_of(variant: Variant, batch: Any) -> float:
    return float(batch[2].sum()) if variant.tokens else float(len(batch[1]))


def train(
    variant: Variant,
    batches: Callable[[], Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Callable[[Any], Sequence[Any]] | None = None,
    keep: Callable[..., None] = lambda **_: None,
) -> None:
    """The user's loop. `parts` cuts a batch into pieces whose gradients are added up by hand, for the run that others are
    compared with."""
    forward: Callable[..., Any] = torch.compile(model, backend="aot_eager") if variant.compiled else model
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if variant.scaler else None
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7) if variant.scheduler else None
    keep(**{name: one for name, one in (("scaler", scaler), ("scheduler", scheduler)) if one is not None})

    def backward(batch: Any) -> None:
        loss = loss_of(variant, forward, batch)
        (scaler.scale(loss) if scaler is not None else loss).backward()

    for batch in batches():
        if not (variant.steps and parts is None):
            (model if variant.model_zero else optimizer).zero_grad()
        if parts is not None:
            # Outside of autograd: in 16 bits a loss that is scaled has other gradients.
            sums = [torch.zeros_like(p) for p in model.parameters()]
            pieces = parts(batch)
            for piece in pieces:
                model.zero_grad()
                backward(piece)
                for total, p in zip(sums, model.parameters(), strict=True):
                    total += p.grad * weight_of(variant, piece)  # type: ignore[operator]
            for total, p in zip(sums, model.parameters(), strict=True):
                p.grad = total / sum(weight_of(variant, piece) for piece in pieces)
        elif variant.steps:
            for piece in batch:
                backward(piece)
        else:
            backward(batch)
        if scaler is not None:
            scaler.unscale_(optimizer)
        if variant.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if variant.steps and parts is None:
            optimizer.zero_grad()


def worker_main(variant: Variant, data: Pictures, epochs: float | None, log: dict[int, list[list[int]]], **join: Any) -> Any:
    """What a worker runs. `log` gets the indices of each worker's batches."""
    worker = paceline.join(epochs=epochs, batch_max=variant.batch_max, **join)
    model, optimizer = build(variant)
    loader = DataLoader(data, batch_size=TOTAL // 3, shuffle=True, collate_fn=_collate)
    weight = (lambda batch: weight_of(variant, batch)) if variant.tokens else None
    model, optimizer, shares = worker.prepare(model, optimizer, loader, weight=weight)
    mine = log.setdefault(worker.id, [])

    def batches() -> Any:
        for _ in worker.epochs():
            if variant.steps:
                for step in shares.steps():
                    yield _logged_pieces(step, mine)
            else:
                for *batch, indices in shares:
                    mine.append(indices)
                    yield batch

    train(variant, batches, model, optimizer, keep=worker.keep)
    return model, optimizer, worker.status()


def _logged_pieces(step: Any, mine: list[list[int]]) -> Any:
    mine.append([])
    for *batch, indices in step:
        mine[-1].extend(indices)
        yield batch


class Indexed(Pictures):
    """Pictures that also give their indices."""

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), index


def _collate(samples: list[Any]) -> Any:
    columns = list(zip(*samples, strict=True))
    return *(torch.stack(column) for column in columns[:3]), list(columns[3])


def alone(
    variant: Variant,
    updates: int,
    shares: Sequence[Sequence[int]] | None = None,
    taken: Sequence[Sequence[int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The same loop in one process with the whole batch, without Paceline. `shares`: the sizes of the pieces of each update; `taken`:
    the samples of each update, if they are not the next ones in the order of the job."""
    data, variant = Pictures(), replace(variant, steps=False)
    data.x = data.x.to(dtype)
    order = _paceline.Order(1, len(data), True)
    model, optimizer = build(variant)
    if dtype != torch.float32:
        model = model.to(dtype)
        optimizer = variant.optimizer(model)

    def batches() -> Any:
        for update in range(updates):
            next_ones = [i for _, i in order.at([(update * TOTAL, (update + 1) * TOTAL)])]
            rows = [data[i] for i in (next_ones if taken is None else taken[update])]
            yield [torch.stack(column) for column in zip(*rows, strict=True)]

    sizes = iter(shares or ())

    def parts(batch: Any) -> Sequence[Any]:
        return list(zip(*(column.split(next_sizes) for column in batch), strict=True)) if (next_sizes := list(next(sizes))) else []

    train(variant, batches, model, optimizer, parts if shares is not None else None)
    return model


def assert_same(variant: Variant, model: nn.Module, shares: Any, taken: Any = None) -> None:
    """The model is that of one process with the whole batch, but for rounding."""
    one = alone(variant, UPDATES, shares if variant.in_pieces else None, taken)
    if not variant.is_adaptive:
        assert distance(model, one) < 1e-6
        return
    # AdamW divides a gradient by its usual size, so that the rounding of small gradients counts as much as that of large ones: one
    # process is itself 1.2e-6 away from the same loop in 64 bits, in whatever order it adds, and two runs are up to 2e-6 apart.
    exact = alone(variant, UPDATES, None, taken, torch.float64)
    assert distance(model, exact) < 1.5 * distance(one, exact)


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two models' parameters and buffers, relative to the largest number of each."""
    far = 0.0
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        if a.is_floating_point():
            far = max(far, float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)))
    return far


def is_equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same bits, also in their buffers."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
