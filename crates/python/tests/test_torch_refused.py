"""What cannot be is refused in a sentence that says what to do: never a hang, never a panic."""

from collections.abc import Iterator
from typing import Any

import paceline
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler  # noqa: E402

pytestmark = pytest.mark.torch

DATA = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


def prepared(
    model: "nn.Module | None" = None, optimizer: Any = None, loader: Any = None, join: "dict[str, Any] | None" = None, **more: Any
) -> Any:
    worker = paceline.join(**(join or {}))
    model = nn.Linear(4, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if optimizer is None else optimizer(model)
    loader = DataLoader(DATA, batch_size=4) if loader is None else loader
    return worker, *worker.prepare(model, optimizer, loader, **more)


class FsdpModel(nn.Linear):
    pass


FsdpModel.__name__ = "FullyShardedDataParallel"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": lambda m: torch.optim.LBFGS(m.parameters())}, "LBFGS evaluates the loss several times"),
        ({"optimizer": lambda m: 3}, "is no torch.optim.Optimizer"),
        ({"optimizer": lambda m: torch.optim.SGD([torch.zeros(2)], 0.1)}, "no parameters that are learned"),
        ({"model": nn.Linear(4, 2).double()}, "weight is float64: use float32"),
        ({"model": FsdpModel(4, 2)}, "sharded by FSDP"),
        ({"model": nn.LazyLinear(2)}, "has no shape yet"),
        ({"loader": [1, 2]}, "list is no torch.utils.data.DataLoader"),
        ({"loader": DataLoader(Stream(), batch_size=4)}, "an iterable data set has no positions"),
        ({"loader": DataLoader(DATA, batch_sampler=[[0, 1], [2]])}, "a batch sampler of its own"),
        ({"loader": DataLoader(DATA, batch_size=None)}, "no batches"),
        ({"loader": DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 32, 32))}, "WeightedRandomSampler: give the order"),
        ({"join": {"strategy": "nosuch"}}, "there is no strategy"),
        ({"join": {"epochs": 0}}, "epochs = 0: give a number above zero"),
        ({"join": {"batch_fixed": 3}}, "does not divide the loader's batch_size"),
        ({"join": {"strategy": "async"}, "optimizer": lambda m: torch.optim.Adagrad(m.parameters())}, "a center applies the gradients"),
        ({"order": lambda epoch: []}, "no samples"),
    ],
)
def test_what_cannot_be_prepared_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(paceline.Refused, match=message) as refused:
        prepared(**arguments)
    assert "\n" not in str(refused.value)


def test_a_model_that_differs_between_members_is_refused_with_the_layer() -> None:
    sides = iter((3, 3, 5))

    def main() -> Any:
        worker = paceline.join()
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, next(sides)))
        return worker.prepare(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(DATA, batch_size=4))

    with pytest.raises(paceline.Refused, match=r"differs .* 1\.weight \(5, 4\) float32 here, 1\.weight \(3, 4\)"):
        paceline.threads(main, workers=3)


def test_other_frozen_numbers_and_other_options_are_refused() -> None:
    def main(frozen: Any, epochs: Any) -> Any:
        worker = paceline.join(epochs=next(epochs))
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].weight.requires_grad_(False).fill_(next(frozen))
        loader = DataLoader(DATA, batch_size=4)
        return worker.prepare(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1), loader)

    with pytest.raises(paceline.Refused, match="the frozen parameter 0.weight has other numbers"):
        paceline.threads(lambda values=iter((1.0, 2.0)), epochs=iter((1, 1)): main(values, epochs), workers=2)  # type: ignore[misc]
    with pytest.raises(paceline.Refused, match=r"epochs is 2\.0 here and 1\.0 at another worker"):
        paceline.threads(lambda values=iter((1.0, 1.0)), epochs=iter((1, 2)): main(values, epochs), workers=2)  # type: ignore[misc]


def batch_loop(worker: Any, model: Any, optimizer: Any, loader: Any, body: Any) -> None:
    with worker:
        for _ in worker.epochs():
            for x, y in loader:
                body(model, optimizer, x, y)


def test_gradient_accumulation_by_hand_is_refused() -> None:
    def body(model: Any, optimizer: Any, x: Any, y: Any) -> None:
        F.cross_entropy(model(x), y).backward()

    with pytest.raises(paceline.Refused, match=r"before optimizer\.step\(\).*batch_max="):
        batch_loop(*prepared(), body)


def test_two_backward_calls_for_a_batch_are_refused() -> None:
    def body(model: Any, optimizer: Any, x: Any, y: Any) -> None:
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(model(x), y).backward()

    with pytest.raises(paceline.Refused, match=r"backward\(\) was called twice"):
        batch_loop(*prepared(), body)


def test_a_batch_without_backward_and_a_step_without_gradient_are_refused() -> None:
    with pytest.raises(paceline.Refused, match=r"a batch had no backward\(\)"):
        batch_loop(*prepared(), lambda *_: None)
    worker, _, optimizer, _ = prepared()
    with worker, pytest.raises(paceline.Refused, match=r"optimizer\.step\(\) without a gradient"):
        optimizer.step()


def test_pieces_in_a_flat_loop_are_refused() -> None:
    for join in ({"batch_max": 2}, {"batch_fixed": 2}, {"strategy": "abs"}):
        worker, _, _, loader = prepared(join=join)
        with worker, pytest.raises(paceline.Refused, match=r"loop over loader\.steps\(\)"):
            next(iter(loader))


def test_sparse_gradients_are_refused_with_the_parameter() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 2, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x.abs().long().clamp(max=7)).mean(1)

    def body(model: Any, optimizer: Any, x: Any, y: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()

    with pytest.raises(paceline.Refused, match=r"table\.weight has a sparse gradient"):
        batch_loop(*prepared(model=Sparse()), body)


def test_parameters_that_change_after_prepare_are_refused() -> None:
    def body(model: Any, optimizer: Any, x: Any, y: Any) -> None:
        model.bias.requires_grad_(False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    with pytest.raises(paceline.Refused, match="had 2 in worker.prepare"):
        batch_loop(*prepared(), body)


def test_what_cannot_be_kept_is_refused() -> None:
    worker = paceline.join()
    with pytest.raises(paceline.Refused, match="no state_dict"):
        worker.keep(scheduler=3)
    from paceline.keeping import pack

    with pytest.raises(paceline.Refused, match=r"state\['f'\] is a function"):
        pack({"f": lambda: 1})


def test_damaged_state_of_a_peer_is_an_error_and_not_a_crash() -> None:
    from paceline.keeping import pack, unpack

    whole = pack({"a": torch.arange(10.0), "n": [1, (2, 3), {4: None}], "inf": float("inf")})
    assert torch.equal(unpack(whole)["a"], torch.arange(10.0)) and unpack(whole)["n"] == [1, (2, 3), {4: None}]
    for damaged in (b"", whole[:20], whole[:-8], b"\xff" * 64, whole[:8] + b"[" + whole[9:]):
        with pytest.raises(paceline.PacelineError):
            unpack(damaged)


def test_a_worker_in_a_forked_process_is_an_error_and_does_not_hang() -> None:
    import os

    worker, _, _, loader = prepared()
    with worker:
        next(iter(loader))
        child = os.fork()
        if child == 0:
            try:
                worker._host.line.next()
            except paceline.PacelineError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
