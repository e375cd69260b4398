"""Members that are lost, join and leave while the user's loop runs: nothing is lost, repeated or computed twice."""

from collections import Counter
from typing import Any

import paceline
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch_loops import Indexed, Net, _collate, is_equal  # noqa: E402

pytestmark = pytest.mark.torch

#: Two workers crash and come back, one leaves, one joins.
UNSTEADY: dict[str, Any] = {
    "compute": {"relative": [1.0, 2.5, 1.0, 4.0], "jitter": 0.5},
    "crash": [{"worker": 1, "at": 0.03, "back_after": 0.02}, {"worker": 2, "at": 0.05, "back_after": 0.02}],
    "leave": [{"worker": 3, "at": 0.06}],
    "join": [{"at": 0.02, "workers": 1}],
}


class Loop:
    """A loop with everything that newcomers must get, and a record of what it computed."""

    def __init__(self, strategy: str, epochs: float = 3.0, fails: "dict[int, int] | None" = None) -> None:
        self.strategy, self.epochs = strategy, epochs
        #: The indices of each worker's batches, and its data set.
        self.computed: dict[int, list[list[int]]] = {}
        self.data: dict[int, Indexed] = {}
        self.rates: dict[int, dict[int, float]] = {}
        self.starts: dict[int, int] = {}
        self.fails = fails or {}

    def __call__(self) -> Any:
        worker = paceline.join(strategy=self.strategy, epochs=self.epochs, seed=3)
        torch.manual_seed(0)
        model = Net(bn=True)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        data = Indexed()
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, collate_fn=_collate)
        model, optimizer, shares = worker.prepare(model, optimizer, loader)
        worker.keep(scheduler=scheduler, scaler=scaler)
        computed = self.computed.setdefault(worker.id, [])
        self.data[worker.id] = data
        for epoch in worker.epochs():
            self.starts.setdefault(worker.id, epoch)
            for x, y, _, indices in shares:
                computed.append(indices)
                optimizer.zero_grad()
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
                self.rates.setdefault(worker.status().round, {})[worker.id] = optimizer.param_groups[0]["lr"]
                if worker.status().updates == self.fails.get(worker.id, -1):
                    raise RuntimeError("mine")
            scheduler.step()
        return model, optimizer, scaler, worker.progress


def test_newcomers_are_bit_equal_with_adamw_scheduler_and_scaler() -> None:
    loop = Loop("ssgd")
    [outcome] = paceline.simulate(loop, UNSTEADY, workers=4)
    # One has left in between.
    ends = [end[:3] for end in outcome.returned.values() if end[3] == 1.0]
    assert len(loop.computed) > 4 and len(ends) >= 3, "members came and went"
    assert max(outcome.returned) >= 4, "a newcomer ended with the others"
    for model, optimizer, scaler in ends:
        assert is_equal(ends[0][0], model)
        assert scaler.get_scale() == ends[0][2].get_scale()
        for p, q in zip(optimizer.param_groups[0]["params"], ends[0][1].param_groups[0]["params"], strict=True):
            assert torch.equal(optimizer.state[p]["exp_avg_sq"], ends[0][1].state[q]["exp_avg_sq"])
    for round, rates in loop.rates.items():
        assert len(set(rates.values())) == 1, f"round {round}: {rates}"


@pytest.mark.parametrize("strategy", ["ssgd", "dbs", "pipe", "cpsgd", "gossip-pull", "easgd", "async"])
def test_each_sample_is_learned_once_through_crashes_joins_and_leaves(strategy: str) -> None:
    loop = Loop(strategy)
    [outcome] = paceline.simulate(loop, UNSTEADY, workers=4)
    ledger = outcome.result["ledger"]
    assert (ledger["done"], ledger["lost"], ledger["repeated"]) == (3 * 96, 0, 0)


def test_no_survivor_computes_a_sample_twice() -> None:
    loop = Loop("ssgd", epochs=1.0)
    [outcome] = paceline.simulate(loop, {**UNSTEADY, "crash": UNSTEADY["crash"][:1], "leave": []}, workers=4)
    assert outcome.result["ledger"]["lost"] == 0
    dead = 1
    living = [who for who in loop.computed if who != dead]
    read = Counter(index for who in living for index in loop.data[who].read)
    assert set(read.values()) == {1}, "no sample is read again"
    forwards = Counter(index for who in living for batch in without_repeat(loop.computed[who]) for index in batch)
    assert set(forwards.values()) == {1}, "nor computed again"
    assert set(forwards) | {index for batch in loop.computed[dead] for index in batch} == set(range(96))


def without_repeat(batches: list[list[int]]) -> list[list[int]]:
    """A worker without samples in the last update runs its last batch once more."""
    return batches[:-1] if batches[-1:] == batches[-2:-1] else batches


def test_crashes_on_threads_cost_nothing_but_what_the_dead_worker_held() -> None:
    faults = {"crash": [{"worker": 1, "at": 0.2, "back_after": 0.1}]}
    loop = Loop("ssgd", epochs=8.0)

    def slow() -> Any:
        import time

        time.sleep(0.01)
        return loop()

    outcome = paceline.threads(slow, workers=3, faults=faults)
    ledger = outcome.result["ledger"]
    assert (ledger["done"], ledger["lost"], ledger["repeated"]) == (8 * 96, 0, 0)


@pytest.mark.parametrize("run", [paceline.threads, lambda main, workers: paceline.simulate(main, workers=workers)])
def test_an_exception_in_one_worker_ends_the_run_and_is_raised(run: Any) -> None:
    with pytest.raises(RuntimeError, match="mine") as raised:
        run(Loop("ssgd", epochs=50.0, fails={1: 3}), workers=3)
    assert any("worker 1" in note for note in raised.value.__notes__)
