"""Scalers that skip, prefetching, orders, fixed pieces, half precision, checkpoints, progress."""

import json
import random
import time
from pathlib import Path
from typing import Any

import paceline
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from paceline.prefetch import Prefetcher  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402
from torch_loops import Net, Pictures, is_equal  # noqa: E402

pytestmark = pytest.mark.torch

DATA = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))


def test_a_step_that_a_scaler_skips_is_a_round_that_is_counted_and_noted(tmp_path: Path) -> None:
    def main() -> Any:
        worker = paceline.join(epochs=1)
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(DATA, batch_size=4))
        worker.keep(scaler=scaler)
        for _ in worker.epochs():
            for number, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                # One worker overflows; all skip the step.
                bad = number == 2 and worker.id == 1
                scaler.scale(loss * float("inf") if bad else loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return model, worker.status(), scaler.get_scale()

    journal = tmp_path / "journal.jsonl"
    outcome = paceline.threads(main, workers=2, journal=str(journal))
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    noted = [(record["round"], record["who"]) for record in records if record["record"] == "note" and record["name"] == "skipped"]
    assert sorted(noted) == [(2, 0), (2, 1)]
    assert outcome.result["rounds"] == 8 and outcome.samples == 64
    models, statuses, scales = zip(*outcome.returned.values(), strict=True)
    assert is_equal(models[0], models[1]) and bool(torch.isfinite(models[0].weight).all())
    assert [status.skipped for status in statuses] == [1, 1]
    assert [status.updates for status in statuses] == [7, 7]
    assert scales == (32.0, 32.0)


class Slow(Dataset[Any]):
    """Decoding takes 40 ms for each sample."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.04)
        return torch.full((4,), float(index)), index % 2


def test_samples_are_read_ahead_and_shares_are_put_together_from_grains() -> None:
    seen: dict[int, list[int]] = {}
    sizes: dict[int, list[int]] = {}
    waits: dict[int, list[float]] = {}
    computing: dict[int, float] = {}

    def main() -> None:
        worker = paceline.join(epochs=1, strategy="lb-bsp")
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        loader = DataLoader(Slow(), batch_size=16, num_workers=4, prefetch_factor=4, shuffle=True)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        mine, size, wait = (log.setdefault(worker.id, []) for log in (seen, sizes, waits))
        for _ in worker.epochs():
            for x, y in loader:
                wait.append(worker.status().waited)
                mine.extend(int(row[0]) for row in x)
                size.append(len(y))
                pause = (0.03 if worker.id == 1 else 0.015) * len(y)
                computing[worker.id] = computing.get(worker.id, 0.0) + pause
                time.sleep(pause)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    paceline.threads(main, workers=2)
    everything = [index for indices in seen.values() for index in indices]
    # A worker without samples in the last update runs its last batch once more, which is not read again.
    assert set(everything) == set(range(320)) and len(everything) <= 320 + 32, "each sample once"
    assert sizes[0][-2] > sizes[1][-2], f"shares follow the speeds: {sizes}"
    for who, wait in waits.items():
        # Four processes need 10 ms for each sample, two thirds of the time that the fast worker computes. The first updates are left out.
        part = (wait[-1] - wait[3]) / computing[who]
        assert part < 0.05, f"worker {who} waited for {part:.1%} of its time"


def test_samples_of_shares_that_change_are_known_two_rounds_before(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, set[int]] = {}
    rounds: dict[int, list[tuple[int, int]]] = {}
    announce = Prefetcher.announce

    def announced(self: Prefetcher, share: list[int], ahead: list[tuple[int, int]]) -> None:
        mine = known.setdefault(id(self), set())
        rounds.setdefault(id(self), []).append((len(share), len(set(share) - mine)))
        mine.update(share, *(range(start, end) for start, end in ahead))
        announce(self, share, ahead)

    monkeypatch.setattr(Prefetcher, "announce", announced)

    def main() -> None:
        worker = paceline.join(epochs=1, strategy="lb-bsp")
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        data = TensorDataset(torch.zeros(1280, 4), torch.zeros(1280, dtype=torch.long))
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(data, batch_size=16, num_workers=1))
        dice = random.Random(worker.id)
        for _ in worker.epochs():
            for x, y in loader:
                time.sleep(0.002 * dice.uniform(0.3, 1.7) * len(y))
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    paceline.threads(main, workers=2)
    for shares in rounds.values():
        # The last shares are whatever is left.
        counted = shares[1:-3]
        assert len({share for share, _ in counted}) > 2, f"the shares change: {shares}"
        assert not any(unknown for _, unknown in counted), f"all samples were announced before: {shares}"


class Broken(Slow):
    def __getitem__(self, index: int) -> Any:
        if index == 100:
            raise LookupError("sample 100 is broken")
        return super().__getitem__(index)


def test_a_sample_that_cannot_be_read_ahead_fails_the_loop_that_needs_it() -> None:
    worker = paceline.join(epochs=1)
    model = nn.Linear(4, 2)
    model, optimizer, loader = worker.prepare(
        model, torch.optim.SGD(model.parameters(), 1e-6), DataLoader(Broken(), batch_size=16, num_workers=4)
    )
    with pytest.raises(LookupError, match="sample 100 is broken"):
        for _ in worker.epochs():
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    worker.close()
    assert worker.status().updates == 6, "the updates before it were made"


def test_own_orders_and_fixed_pieces() -> None:
    def main(seen: list[list[int]], **options: Any) -> None:
        order = options.pop("order", None)
        worker = paceline.join(epochs=1, **options)
        model = nn.Linear(1, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = TensorDataset(torch.arange(70.0)[:, None], torch.zeros(70, dtype=torch.long))
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True), order=order)
        for _ in worker.epochs():
            for step in loader.steps():
                for x, y in step:
                    seen.append([int(row) for row in x[:, 0]])
                    F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

    backwards: list[list[int]] = []
    main(backwards, order=lambda epoch: range(69, -1, -1))
    assert [index for piece in backwards for index in piece] == list(range(69, -1, -1))
    fixed: list[list[int]] = []
    main(fixed, batch_fixed=4)
    assert {len(piece) for piece in fixed} == {4} and len(fixed) == 17
    assert len({index for piece in fixed for index in piece}) == 68
    most: list[list[int]] = []
    main(most, batch_max=6)
    assert max(len(piece) for piece in most) <= 6 and sum(len(piece) for piece in most) == 70


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_16_bits_are_summed_in_32(dtype: torch.dtype) -> None:
    def main() -> Any:
        worker = paceline.join(epochs=1)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        model[0].to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(DATA, batch_size=4))
        for _ in worker.epochs():
            for x, y in loader:
                optimizer.zero_grad()
                hidden = model[0](x.to(dtype)).float()
                F.cross_entropy(model[2](model[1](hidden)), y).backward()
                assert model[0].weight.grad is not None and model[0].weight.grad.dtype == dtype
                optimizer.step()
        return model

    outcome = paceline.threads(main, workers=3)
    models = list(outcome.returned.values())
    assert all(is_equal(models[0], model) for model in models)
    assert outcome.samples == 64


def checkpointed(folder: "Path | None", resume: "Path | None", workers: int, epochs: float, stop_at: int | None = None) -> Any:
    def main() -> Any:
        worker = paceline.join(
            epochs=epochs, checkpoints=str(folder) if folder else None, resume=str(resume) if resume else None, batch_total=12
        )
        torch.manual_seed(0)
        model = Net(bn=True).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loader = DataLoader(Pictures(), batch_size=4, shuffle=True)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        worker.keep(scheduler=scheduler)
        for _ in worker.epochs():
            for x, y, _ in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                if worker.status().round + 1 == stop_at:
                    worker.stop()
                time.sleep(0.005 if stop_at else 0)
            scheduler.step()
        return model, optimizer

    return paceline.threads(main, workers=workers)


def test_a_checkpoint_loads_into_a_bare_model_and_resumes_in_the_middle_of_an_epoch_on_other_workers(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    folder = tmp_path / "saved"
    whole = checkpointed(None, None, 3, 3.0)
    part = checkpointed(folder, None, 3, 3.0, stop_at=11)
    assert part.result["stopped"] and part.samples % 96 != 0, "it was stopped in the middle of an epoch"

    newest = max(path for path in folder.iterdir() if path.is_dir())
    bare = Net(bn=True)
    bare.load_state_dict(safetensors.load_file(newest / "weights.safetensors"))
    assert is_equal(bare, part.returned[0][0])

    resumed = checkpointed(None, folder, 3, 3.0)
    assert is_equal(resumed.returned[0][0], whole.returned[0][0]), "as if it had never been stopped"
    assert resumed.returned[0][1].param_groups[0]["lr"] == whole.returned[0][1].param_groups[0]["lr"]
    other = checkpointed(None, folder, 2, 3.0)
    ledger = other.result["ledger"]
    assert (ledger["done"], ledger["lost"], ledger["repeated"]) == (3 * 96, 0, 0)


def test_progress_and_epochs_are_the_same_on_all_workers() -> None:
    seen: dict[int, list[Any]] = {}

    def main() -> None:
        worker = paceline.join(epochs=2.5)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0 - worker.progress)
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(DATA, batch_size=5, shuffle=True))
        mine = seen.setdefault(worker.id, [])
        for epoch in worker.epochs():
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                schedule.step()
                mine.append((epoch, worker.progress, optimizer.param_groups[0]["lr"]))

    paceline.simulate(main, "stragglers", workers=3)
    assert seen[0] == seen[1] == seen[2]
    assert {epoch for epoch, _, _ in seen[0]} == {0, 1, 2}
    assert seen[0][-1][1] == 1.0 and seen[0][-1][2] == pytest.approx(0.0)


def test_an_optimizer_step_with_a_closure_calls_it_once() -> None:
    calls = []
    worker = paceline.join(epochs=1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(DATA, batch_size=16))
    for _ in worker.epochs():
        for x, y in loader:

            def closure(x: Any = x, y: Any = y) -> Any:
                calls.append(1)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            assert float(optimizer.step(closure)) > 0.0
    assert len(calls) == 4
    assert worker.outcome is not None and worker.outcome.samples == 64
