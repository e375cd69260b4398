"""Jobs that continue from the user's own `torch.save`, in the middle of an epoch, on other numbers of workers."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import paceline  # noqa: E402
from paceline import _paceline  # noqa: E402
from paceline.resuming import Before, Rest, joined  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch_cluster import Cluster  # noqa: E402
from torch_loops import SAMPLES, TOTAL, UNEVEN, Indexed, Variant, _collate, alone, build, distance, is_equal, loss_of  # noqa: E402

pytestmark = pytest.mark.torch
EPOCHS = 3.0


class Loop:
    """A user's loop that saves after some update, and may begin with a file."""

    def __init__(self, strategy: str = "ssgd", saves_at: int | None = None, file: bytes | None = None, **join: Any) -> None:
        self.strategy, self.saves_at, self.join = strategy, saves_at, join
        self.file: bytes | None = file
        self.saved: bytes | None = None
        #: The indices of the samples in each worker's batches.
        self.computed: list[int] = []
        self.epochs: list[int] = []

    def __call__(self) -> Any:
        worker = paceline.join(strategy=self.strategy, epochs=EPOCHS, **{"batch_total": TOTAL, **self.join})
        variant = Variant()
        model, optimizer = build(variant)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        worker.keep(scheduler=scheduler)
        if self.file is not None:
            # Without pickles of our own.
            found = torch.load(io.BytesIO(self.file), weights_only=True)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            worker.load_state_dict(found["worker"])
        loader = DataLoader(Indexed(), batch_size=8, shuffle=True, collate_fn=_collate)
        model, optimizer, shares = worker.prepare(model, optimizer, loader)
        rates = []
        for epoch in worker.epochs():
            if worker.is_first:
                self.epochs.append(epoch)
            for *batch, indices in shares:
                optimizer.zero_grad()
                loss_of(variant, model, batch).backward()
                self.computed.extend(indices)
                optimizer.step()
                rates.append(optimizer.param_groups[0]["lr"])
                if worker.status().updates == self.saves_at and worker.is_first and self.saved is None:
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "worker": worker.state_dict()}
                    file = io.BytesIO()
                    torch.save(states, file)
                    self.saved = file.getvalue()
                    worker.stop()
            scheduler.step()
        return model, rates, worker.progress


def learned(file: bytes) -> list[int]:
    """The indices of the samples that a file holds."""
    done = torch.load(io.BytesIO(file), weights_only=True)["worker"]["done"]
    return [index for _, index in _paceline.Order(1, SAMPLES, True).at([tuple(span) for span in done])]


def run(loop: Loop, workers: int) -> Any:
    if workers == 0:
        return [loop()]
    if loop.strategy in ("dbs", "lb-bsp"):
        [outcome] = paceline.simulate(loop, {**UNEVEN, "workers": workers, "compute": {"relative": [1.0, 3.2, 5.3, 2.0][:workers]}}, workers=workers)
    else:
        outcome = paceline.threads(loop, workers=workers)
    return list(outcome.returned.values())


@pytest.mark.parametrize("then", [0, 1, 2, 3, 4])
def test_a_job_continues_in_the_middle_of_an_epoch_on_other_numbers_of_workers(then: int) -> None:
    first = Loop(saves_at=6)
    run(first, 3)
    assert first.saved is not None
    again = Loop(file=first.saved)
    ends = run(again, then)

    # Each sample of three epochs once: in the file, or afterwards. A worker that has no share in the last update repeats its last batch.
    counted = Counter(learned(first.saved)) + Counter(again.computed)
    assert set(counted) == set(range(SAMPLES)) and min(counted.values()) == 3
    assert sum(counted.values()) - 3 * SAMPLES <= TOTAL
    # As if nothing had happened: 12 updates of 24 samples, with the scheduler's rates.
    variant = Variant()
    whole = alone_with_steps(variant)
    assert distance(ends[0][0], whole) < 1e-6
    assert all(is_equal(end[0], ends[0][0]) and end[2] == 1.0 for end in ends)
    assert again.epochs == [1, 2]
    assert ends[0][1] == pytest.approx([0.07] * 2 + [0.049] * 4)


def alone_with_steps(variant: Variant) -> Any:
    """Three epochs of four updates in one process, with a rate that falls after each epoch."""
    data = Indexed()
    order = _paceline.Order(1, SAMPLES, True)
    model, optimizer = build(variant)
    for update in range(12):
        rows = [data[i][:3] for _, i in order.at([(update * TOTAL, (update + 1) * TOTAL)])]
        optimizer.zero_grad()
        loss_of(variant, model, [torch.stack(column) for column in zip(*rows, strict=True)]).backward()
        optimizer.step()
        if update % 4 == 3:
            optimizer.param_groups[0]["lr"] *= 0.7
    return model


def test_alone_the_bits_are_those_of_a_run_without_interruption() -> None:
    whole = run(Loop(), 0)[0][0]
    first = Loop(saves_at=5)
    run(first, 0)
    [(model, _, progress)] = run(Loop(file=first.saved), 0)
    assert progress == 1.0 and is_equal(model, whole)


@pytest.mark.parametrize("strategy", ["dbs", "lb-bsp", "pipe", "cpsgd", "adpsgd", "diloco", "local-dbs", "qsgd"])
@pytest.mark.parametrize("then", [2, 4])
def test_each_sample_is_learned_once_whatever_the_strategy(strategy: str, then: int) -> None:
    first = Loop(strategy, saves_at=5)
    run(first, 3)
    assert first.saved is not None
    done = learned(first.saved)
    again = Loop(strategy, file=first.saved)
    ends = run(again, then)
    # The last local steps of averaging members need not be equally many.
    assert max(end[2] for end in ends) == 1.0
    counted = Counter(done) + Counter(again.computed)
    assert min(counted[index] for index in range(SAMPLES)) == 3
    assert sum(counted.values()) - 3 * SAMPLES <= TOTAL * then


def test_a_file_of_a_continued_job_continues_it() -> None:
    first = Loop(saves_at=3)
    run(first, 3)
    second = Loop(saves_at=7, file=first.saved)
    run(second, 2)
    assert second.saved is not None
    assert len(learned(second.saved)) == 7 * TOTAL
    third = Loop(file=second.saved)
    ends = run(third, 4)
    assert distance(ends[0][0], alone_with_steps(Variant())) < 1e-6


def state(**changes: Any) -> dict[str, Any]:
    return Before([(0, 24)], SAMPLES, None, 1, 0, 1, 0, {}).state_dict() | changes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no state of a worker"),
        (state(format=7), "format 7"),
        (state(done=[[5, 3]]), "damaged"),
        (state(done=[[0, 5], [3, 9]]), "damaged"),
        (state(done=[[0, "x"]]), "damaged"),
        (state(seed=4), "seed was 4 and is 1 now"),
        (state(samples=95), "samples in an epoch was 95 and is 96 now"),
        (state(batch_fixed=4), "batch_fixed was 4"),
        (state(done=[[0, 288]]), "3 epochs are learned, and the job has 3"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(given: dict[str, Any], told: str) -> None:
    model, optimizer = build(Variant())
    worker = paceline.join(epochs=EPOCHS)
    with pytest.raises(paceline.Refused, match=told):
        worker.load_state_dict(given)
        worker.prepare(model, optimizer, DataLoader(Indexed(), batch_size=8, shuffle=True, collate_fn=_collate))


def test_a_state_is_refused_in_the_middle_of_an_update_and_where_no_worker_knows_it() -> None:
    def middle() -> None:
        worker = paceline.join(epochs=EPOCHS)
        model, optimizer = build(Variant())
        model, optimizer, shares = worker.prepare(model, optimizer, DataLoader(Indexed(), batch_size=8, collate_fn=_collate))
        for *batch, _ in shares:
            optimizer.zero_grad()
            loss_of(Variant(), model, batch).backward()
            worker.state_dict()

    with pytest.raises(paceline.Refused, match="middle of an update"):
        middle()
    with pytest.raises(paceline.Refused, match="no worker knows"):
        paceline.threads(Loop("gossip-pull", saves_at=2), workers=2)
    worker = paceline.join(checkpoints="saved")
    with pytest.raises(paceline.Refused, match="your own file, or from Paceline's"):
        worker.load_state_dict(state())


def test_workers_that_continue_from_other_files_are_refused() -> None:
    seen: list[int] = []

    def main() -> None:
        worker = paceline.join(epochs=EPOCHS)
        seen.append(0)
        worker.load_state_dict(state(done=[[0, 24 * len(seen)]]))
        model, optimizer = build(Variant())
        worker.prepare(model, optimizer, DataLoader(Indexed(), batch_size=8, shuffle=True, collate_fn=_collate))

    with pytest.raises(paceline.Refused, match="the same state everywhere"):
        paceline.threads(main, workers=2)


def test_positions_of_the_rest_are_those_that_are_not_learned() -> None:
    rest = Rest([(0, 4), (6, 9), (12, 13)], 16)
    positions = [4, 5, 9, 10, 11, 13, 14, 15]
    assert [rest.at(at) for at in range(8)] == positions
    assert joined(rest.spans([(0, 3), (3, 8)])) == [(4, 6), (9, 12), (13, 16)]
    assert [at for start, end in rest.spans([(1, 6)]) for at in range(start, end)] == positions[1:6]


@pytest.mark.processes
def test_processes_continue_where_others_stopped(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    file = str(tmp_path / "mine.pt")
    with Cluster(tmp_path / "one", "3", epochs=5) as cluster:
        workers = [cluster.join({"saves": file, "saves_at": 6, "breaks_at": 6}) for _ in range(3)]
        cluster.begin(*workers)
        assert [worker.wait() for worker in workers] == [0, 0, 0], "\n".join(worker.told() for worker in workers)
    with Cluster(tmp_path / "two", "2", "--batch-total", str(TOTAL), epochs=5, batch=None) as cluster:
        workers = [cluster.join({"loads": file}) for _ in range(2)]
        cluster.begin(*workers)
        result = cluster.result()
        assert [worker.wait() for worker in workers] == [0, 0], "\n".join(worker.told() for worker in workers)
    assert result["ledger"] == {"done": 480 - 6 * TOTAL, "lost": 0, "repeated": 0}
    saved = cluster.saved()
    whole = alone(Variant(), 20).state_dict()
    for one in saved:
        assert all(torch.allclose(one["model"][name], whole[name], rtol=1e-6, atol=1e-6) for name in whole)
