"""State of optimizers, schedulers and scalers as bytes, for newcomers and checkpoints: a safetensors file, never a pickle.

Tensors are tensors of the file; everything around them (numbers, lists, dictionaries) is JSON in its metadata.
"""

import ctypes
import json
import math
from collections import Counter, OrderedDict, deque
from typing import Any

from .errors import PacelineError, Refused

__all__ = ["pack", "unpack"]

#: The longest header that is read: names and numbers, no tensors.
_HEADER_MAX = 1 << 28


def _names() -> dict[Any, str]:
    import torch

    return {
        torch.float32: "F32",
        torch.float64: "F64",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }


def pack(tree: Any) -> bytes:
    """The bytes of nested lists and dictionaries of numbers, texts and tensors."""
    tensors: list[Any] = []
    plain = _plain(tree, tensors, "state")
    names = _names()
    header: dict[str, Any] = {"__metadata__": {"tree": json.dumps(plain)}}
    parts, at = [], 0
    for index, tensor in enumerate(tensors):
        whole = tensor.detach().to("cpu").contiguous()
        if whole.dtype not in names:
            raise Refused(f"worker.keep: a tensor of type {whole.dtype} cannot be kept")
        size = whole.numel() * whole.element_size()
        header[str(index)] = {
            "dtype": names[whole.dtype],
            "shape": list(whole.shape),
            "data_offsets": [at, at + size],
        }
        parts.append(ctypes.string_at(whole.data_ptr(), size) if size else b"")
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def unpack(data: bytes) -> Any:
    """What `pack` was given. The bytes come from another worker or from a file: anything that does not fit is an error."""
    import torch

    try:
        length = int.from_bytes(data[:8], "little")
        if length > min(_HEADER_MAX, len(data) - 8):
            raise ValueError("the header is longer than the data")
        header = json.loads(data[8 : 8 + length])
        plain = json.loads(header.pop("__metadata__")["tree"])
        dtypes = {name: dtype for dtype, name in _names().items()}
        memory = bytearray(data[8 + length :])
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype, shape = dtypes[entry["dtype"]], [int(side) for side in entry["shape"]]
            count = math.prod(shape)
            size = count * torch.empty((), dtype=dtype).element_size()
            if not 0 <= begin <= end <= len(memory) or end - begin != size:
                raise ValueError(f"tensor {name} does not fit the data")
            if count == 0:
                tensors[int(name)] = torch.empty(shape, dtype=dtype)
            else:
                found = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin)
                tensors[int(name)] = found.clone().reshape(shape)
        return _tree(plain, tensors)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise PacelineError(f"the state of another worker, or of a checkpoint, cannot be read: {error}") from error


def _plain(value: Any, tensors: list[Any], path: str) -> Any:
    import torch

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if type(value) in (dict, OrderedDict, Counter) or type(value).__name__ == "defaultdict":
        kind = "counter" if isinstance(value, Counter) else "dict"
        items = value.items()
        return {kind: [[_plain(k, tensors, path), _plain(v, tensors, f"{path}[{k!r}]")] for k, v in items]}
    if isinstance(value, list | tuple | deque | set | frozenset):
        parts = [_plain(part, tensors, f"{path}[{at}]") for at, part in enumerate(value)]
        return parts if isinstance(value, list) else {"set" if isinstance(value, set | frozenset) else "tuple": parts}
    if hasattr(value, "item") and type(value).__module__ == "numpy":
        return _plain(value.item(), tensors, path)
    raise Refused(
        f"worker.keep: {path} is a {type(value).__name__}, which cannot be kept: only numbers, texts, lists, "
        "dictionaries and tensors travel to other workers"
    )


def _tree(value: Any, tensors: dict[int, Any]) -> Any:
    if isinstance(value, list):
        return [_tree(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = value.items()
    if kind == "float":
        return float(inner)
    if kind == "tensor":
        return tensors[inner]
    if kind in ("dict", "counter"):
        pairs = {_tree(key, tensors): _tree(part, tensors) for key, part in inner}
        return Counter(pairs) if kind == "counter" else pairs
    parts = [_tree(part, tensors) for part in inner]
    return set(parts) if kind == "set" else tuple(parts)
