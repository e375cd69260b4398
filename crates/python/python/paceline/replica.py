"""A PyTorch model as one flat vector: its gradients, its parameters, its buffers.

The engine reads gradients where `backward()` has put them, and writes their mean to a flat vector; the gradients are then views of it
with the strides of their parameters. Parameters stay where they are: views of one storage would lose their strides and be saved whole.
They are copied when somebody reads them.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _paceline
from .errors import Refused

__all__ = ["LocalReplica", "Replica"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Frozen tensors up to this size are hashed whole, larger ones by some of their numbers.
_HASHED_WHOLE = 1 << 22


@dataclass
class _Group:
    """Parameters of one type, which follow each other in the flat vector."""

    dtype: torch.dtype
    device: torch.device
    start: int
    params: list[torch.nn.Parameter]
    grads: torch.Tensor
    views: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    #: Where the gradients are handed over, if they live elsewhere: on a GPU, or in 16 bits.
    handed: torch.Tensor | None = None


class Replica:
    """The tensors of a model and of its optimizer that are exchanged."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        inner = getattr(model, "_orig_mod", model)
        _check_model(inner)
        names = {id(p): name for name, p in inner.named_parameters()}
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for at, group in enumerate(optimizer.param_groups):
            for index, p in enumerate(group["params"]):
                if p.requires_grad:
                    found[id(p)] = (names.get(id(p), f"optimizer.{at}.{index}"), p)
        order = {key: at for at, key in enumerate(names)}
        rows = sorted(found.values(), key=lambda row: order.get(id(row[1]), len(order)))
        if not rows:
            raise Refused("the optimizer has no parameters that are learned: give it model.parameters()")
        for name, p in rows:
            _check_parameter(name, p)
        self.names: list[str] = []
        self.params: list[torch.nn.Parameter] = []
        for dtype in dict.fromkeys(p.dtype for _, p in rows):
            for name, p in rows:
                if p.dtype == dtype:
                    self.names.append(name)
                    self.params.append(p)
        self.frozen = [(name, p) for name, p in inner.named_parameters() if id(p) not in found]
        self._model = inner
        saved = set(inner.state_dict().keys())
        self._buffers: list[tuple[str, torch.nn.Module, str]] = []
        self._integers: list[tuple[str, torch.nn.Module, str]] = []
        for path, module in inner.named_modules():
            for name, buffer in module.named_buffers(prefix="", recurse=False):
                full = f"{path}.{name}" if path else name
                if full in saved:
                    row = (full, module, name)
                    (self._buffers if buffer.is_floating_point() else self._integers).append(row)
        self.learned = sum(p.numel() for p in self.params)
        self.size = self.learned + sum(b.numel() for b in self.buffers())
        self.flat = _paceline.Flat(self.size)
        self._whole = torch.frombuffer(self.flat, dtype=torch.float32)
        self._groups: list[_Group] = []
        self._exported: _paceline.Flat | None = None

    def buffers(self) -> list[torch.Tensor]:
        """The buffers that are averaged: running statistics."""
        return [getattr(module, name) for _, module, name in self._buffers]

    def integers(self) -> dict[str, torch.Tensor]:
        """Buffers that are not averaged, by their names."""
        return {full: getattr(module, name) for full, module, name in self._integers}

    def tensors(self) -> list[dict[str, Any]]:
        """What members compare, and what files of weights have."""
        rows = [_described(name, p) for name, p in zip(self.names, self.params, strict=True)]
        rows += [
            {"name": full, "shape": list(b.shape), "dtype": _short(b.dtype), "memory": None, "is_steps": False}
            for (full, _, _), b in zip(self._buffers, self.buffers(), strict=True)
        ]
        counters = (full for full, _, name in self._integers if name == "num_batches_tracked")
        rows += [{"name": full, "shape": [], "dtype": "int64", "memory": None, "is_steps": True} for full in counters]
        return rows

    def frozen_hashes(self) -> list[tuple[str, str]]:
        """The names of the frozen parameters, each with a hash of its numbers."""
        return [(name, _hashed(p)) for name, p in self.frozen]

    # Gradients

    def hand(self, line: _paceline.Line, weight: float) -> None:
        """Adds the gradients of a piece, times its weight, to what the engine sums."""
        line.add(self.gather(), weight)

    def gather(self) -> list[tuple[int, int]]:
        """Where the gradients are, as addresses and lengths in the order of the flat vector; an address of 0: there is none. Gradients
        that do not lie like their parameters, or elsewhere than in this process's memory, are copied to the flat vector."""
        if not self._groups or any(p.device != g.device for g in self._groups for p in g.params):
            held = [p.grad for p in self.params]
            self._group()
            for p, grad in zip(self.params, held, strict=True):
                p.grad = grad
        found: list[tuple[int, int]] = []
        for group in self._groups:
            for p, view, address in zip(group.params, group.views, group.addresses, strict=True):
                at = self._gradient_at(p, group, view, address)
                if group.handed is None:
                    found.append((at, p.numel()))
            if group.handed is not None:
                group.handed.copy_(group.grads)
                found.append((self.flat.address + 4 * group.start, group.grads.numel()))
        return found

    def _gradient_at(self, p: torch.nn.Parameter, group: _Group, view: torch.Tensor, address: int) -> int:
        grad = p.grad
        if grad is None:
            if group.handed is not None:
                view.zero_()
            return 0
        if grad.layout is not torch.strided:
            raise Refused(f"{self._name_of(p)} has a sparse gradient, which cannot be summed: use sparse=False")
        at = grad.data_ptr()
        lies_alike = grad.dtype == torch.float32 and grad.device == group.device and grad.stride() == p.stride()
        if at != address and not (group.handed is None and lies_alike):
            view.copy_(grad)
            p.grad, at = view, address
        return at

    def clear(self) -> None:
        """The next piece begins without gradients."""
        for p in self.params:
            p.grad = None

    def zero(self) -> None:
        """Makes all gradients zero: a GradScaler asks for some."""
        if not self._groups:
            self._group()
        for group in self._groups:
            group.grads.zero_()
        self._show_views()

    def _show_views(self) -> None:
        for group in self._groups:
            for p, view in zip(group.params, group.views, strict=True):
                p.grad = view

    def take(self, line: _paceline.Line) -> None:
        """Makes the mean over all workers' samples the gradients of the model, and that of its buffers the buffers."""
        line.mean(self.flat)
        if not self._groups:
            self._group()
        for group in self._groups:
            if group.handed is not None:
                group.grads.copy_(group.handed)
        self._show_views()
        self._spread_buffers(self._whole)

    def write_buffers(self) -> None:
        """Writes the buffers behind the gradients in the flat vector."""
        self._collect_buffers(self._whole)

    def is_finite(self) -> bool:
        """Whether all gradients are finite."""
        return all(bool(torch.isfinite(group.grads).all()) for group in self._groups)

    # Parameters

    def export(self) -> _paceline.Flat:
        """The parameters and buffers as one vector."""
        flat, whole = self._exports()
        with torch.no_grad():
            torch._foreach_copy_(self._views(whole), [p.detach() for p in self.params])  # pyright: ignore[reportPrivateImportUsage]
            self._collect_buffers(whole)
        return flat

    def room(self) -> _paceline.Flat:
        """The vector that `load` reads."""
        return self._exports()[0]

    def load(self) -> None:
        """Replaces parameters and buffers by the vector of `room`."""
        _, whole = self._exports()
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in self.params], self._views(whole))  # pyright: ignore[reportPrivateImportUsage]
            self._spread_buffers(whole)

    def _exports(self) -> tuple[_paceline.Flat, torch.Tensor]:
        if self._exported is None:
            self._exported = _paceline.Flat(self._whole.numel())
        return self._exported, torch.frombuffer(self._exported, dtype=torch.float32)

    def _views(self, whole: torch.Tensor) -> list[torch.Tensor]:
        views, at = [], 0
        for p in self.params:
            views.append(torch.as_strided(whole, p.shape, _strides(p), at))
            at += p.numel()
        return views

    def _group(self) -> None:
        self._groups = []
        start = 0
        for dtype in dict.fromkeys(p.dtype for p in self.params):
            params = [p for p in self.params if p.dtype == dtype]
            device, count = params[0].device, sum(p.numel() for p in params)
            if any(p.device != device for p in params):
                raise Refused("the model's parameters are on several devices: Paceline trains a model that is on one")
            part = self._whole[start : start + count]
            is_here = dtype == torch.float32 and device.type == "cpu"
            if is_here:
                group = _Group(dtype, device, start, params, part)
            else:
                grads = torch.zeros(count, dtype=dtype, device=device)
                group = _Group(dtype, device, start, params, grads, handed=part)
                if device.type == "cuda":
                    _pin(self.flat)
            at = 0
            for p in params:
                view = torch.as_strided(group.grads, p.shape, _strides(p), at)
                group.views.append(view)
                group.addresses.append(view.data_ptr())
                at += p.numel()
            self._groups.append(group)
            start += count

    def _collect_buffers(self, whole: torch.Tensor) -> None:
        at = self.learned
        for buffer in self.buffers():
            whole[at : at + buffer.numel()].copy_(buffer.detach().reshape(-1))
            at += buffer.numel()

    def _spread_buffers(self, whole: torch.Tensor) -> None:
        at = self.learned
        with torch.no_grad():
            for buffer in self.buffers():
                buffer.copy_(whole[at : at + buffer.numel()].reshape(buffer.shape))
                at += buffer.numel()

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        return next(name for name, p in zip(self.names, self.params, strict=True) if p is parameter)


class LocalReplica(Replica):
    """The replica of a worker that is alone for good and saves nothing: the engine deals samples to it, and needs no numbers.

    What `backward()` has computed is the mean already, so that a step costs what it costs without Paceline.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        # The engine's model has one number.
        self.learned = self.size = 1
        self.flat = _paceline.Flat(1)
        #: The weight of the last piece, and the sums over the pieces before.
        self._weight = 0.0
        self._sums: list[torch.Tensor | None] | None = None
        self._weights = 0.0

    def tensors(self) -> list[dict[str, Any]]:
        """See `Replica`."""
        return [{"name": "none", "shape": [1], "dtype": "float32", "memory": None, "is_steps": False}]

    def hand(self, line: _paceline.Line, weight: float) -> None:
        """See `Replica`."""
        for p in self.params:
            if p.grad is not None and p.grad.layout is not torch.strided:
                raise Refused(f"{self._name_of(p)} has a sparse gradient, which cannot be summed: use sparse=False")
        line.add([(0, 1)], weight)
        self._weight = weight

    def clear(self) -> None:
        """See `Replica`."""
        if self._weight > 0.0:
            parts = [None if p.grad is None else p.grad * self._weight for p in self.params]
            before = self._sums or [None] * len(parts)
            self._sums = [old if new is None else new if old is None else old + new for old, new in zip(before, parts, strict=True)]
            self._weights += self._weight
        self._weight = 0.0
        super().clear()

    def take(self, line: _paceline.Line) -> None:
        """See `Replica`."""
        line.mean(self.flat)
        if self._sums is not None:
            for p, total in zip(self.params, self._sums, strict=True):
                p.grad = None if total is None else total / self._weights
        elif self._weight == 0.0:
            self.zero()
        self._sums, self._weights, self._weight = None, 0.0, 0.0

    def zero(self) -> None:
        """See `Replica`."""
        for p in self.params:
            p.grad = torch.zeros_like(p)

    def write_buffers(self) -> None:
        """See `Replica`: nobody averages them."""

    def is_finite(self) -> bool:
        """See `Replica`."""
        return all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in self.params)

    def export(self) -> _paceline.Flat:
        """See `Replica`."""
        return self.flat

    def whole(self) -> _paceline.Flat:
        """The parameters and buffers as one vector."""
        return super().export()

    def room(self) -> _paceline.Flat:
        """See `Replica`."""
        return self.flat

    def load(self) -> None:
        """See `Replica`: it begins with its own parameters."""


def _check_model(model: torch.nn.Module) -> None:
    kind = type(model).__name__
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise Refused("the model is wrapped in DistributedDataParallel: give worker.prepare the model itself")
    if kind in ("FullyShardedDataParallel", "FSDPModule") or kind.startswith("FSDP"):
        raise Refused("the model is sharded by FSDP: Paceline trains models of which every worker holds a whole replica")


def _check_parameter(name: str, p: torch.nn.Parameter) -> None:
    if type(p.data).__name__ == "DTensor" or hasattr(p, "device_mesh"):
        raise Refused(f"{name} is a DTensor: Paceline trains models of which every worker holds a whole replica")
    if isinstance(p, torch.nn.parameter.UninitializedParameter):
        raise Refused(f"{name} has no shape yet: run one batch through the lazy model before worker.prepare")
    if p.dtype not in _DTYPES:
        raise Refused(f"{name} is {_short(p.dtype)}: use float32, bfloat16 or float16 (model.float())")
    if p.layout is not torch.strided:
        raise Refused(f"{name} is sparse, which cannot be exchanged: use a dense parameter")
    _strides(p, name)


def _strides(p: torch.Tensor, name: str = "a parameter") -> tuple[int, ...]:
    """The strides of a parameter, if its numbers fill its memory without gaps."""
    expected = 1
    for dim in sorted(range(p.dim()), key=lambda dim: (p.stride(dim), p.shape[dim])):
        if p.shape[dim] != 1:
            if p.stride(dim) != expected:
                raise Refused(f"{name} is a view with gaps or repetitions: make it contiguous (p.data = p.data.contiguous())")
            expected *= p.shape[dim]
    return tuple(p.stride())


def _described(name: str, p: torch.Tensor) -> dict[str, Any]:
    strides = _strides(p, name)
    memory = None
    if not p.is_contiguous():
        # The sides from the slowest to the fastest, and where each side of the shape is among them.
        sides = sorted(range(p.dim()), key=lambda dim: (-strides[dim], dim))
        memory = [[p.shape[dim] for dim in sides], [sides.index(dim) for dim in range(p.dim())]]
    return {"name": name, "shape": list(p.shape), "dtype": _short(p.dtype), "memory": memory, "is_steps": False}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hashed(p: torch.Tensor) -> str:
    numbers = p.detach().reshape(-1)
    if numbers.numel() > _HASHED_WHOLE:
        numbers = numbers[:: numbers.numel() // _HASHED_WHOLE + 1]
    raw = numbers.to("cpu").contiguous().view(torch.uint8)
    sums = _bytes(raw)
    text = f"{tuple(p.shape)} {_short(p.dtype)} ".encode()
    return hashlib.blake2b(text + sums, digest_size=8).hexdigest()


def _bytes(raw: torch.Tensor) -> bytes:
    import ctypes

    return ctypes.string_at(raw.data_ptr(), raw.numel()) if raw.numel() else b""


def _pin(flat: _paceline.Flat) -> None:
    """Pins the memory, so that a GPU copies to it and from it directly. Without it copies only take longer."""
    try:
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        cudart.cudaHostRegister(flat.address, len(flat) * 4, 0)
    except (RuntimeError, AttributeError):
        pass
