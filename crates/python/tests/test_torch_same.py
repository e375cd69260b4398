"""Several workers with uneven shares learn what one process with the whole batch learns."""

from typing import Any

import paceline
import pytest

torch = pytest.importorskip("torch")

from torch_loops import (  # noqa: E402
    SAMPLES,
    TOTAL,
    UNEVEN,
    UPDATES,
    VARIANTS,
    Indexed,
    Variant,
    alone,
    assert_same,
    is_equal,
    worker_main,
)

pytestmark = pytest.mark.torch

EPOCHS = UPDATES * TOTAL / SAMPLES
FAST = {"strategy": "all_reduce", "shares": {"kind": "by_speed", "every": "round", "smoothing": 0.3}}


def simulated(variant: Variant) -> tuple[paceline.Outcome, dict[int, list[list[int]]]]:
    log: dict[int, list[list[int]]] = {}
    [outcome] = paceline.simulate(
        lambda: worker_main(variant, Indexed(), EPOCHS, log, strategy="lb-bsp"), UNEVEN, workers=3
    )
    return outcome, log


@pytest.mark.parametrize("name", VARIANTS)
def test_uneven_workers_learn_what_one_process_learns(name: str) -> None:
    variant = VARIANTS[name]
    outcome, log = simulated(variant)
    models = [model for model, _, _ in outcome.returned.values()]
    sizes = list(zip(*([len(batch) for batch in log[who]] for who in sorted(log)), strict=True)) if not variant.steps else None

    assert outcome.samples == UPDATES * TOTAL
    assert len(models) == 3 and all(is_equal(models[0], model) for model in models), "replicas are bit-equal"
    if sizes is not None:
        assert any(max(size) >= 2 * min(size) for size in sizes), "the shares are uneven"
    assert_same(variant, models[0], sizes)


def test_statistics_of_batch_norm_are_those_of_all_workers_and_bit_equal() -> None:
    outcome, _ = simulated(Variant(net={"bn": True}))
    models = [model for model, _, _ in outcome.returned.values()]
    assert all(is_equal(models[0], model) for model in models)
    one = alone(Variant(net={"bn": True}), UPDATES)
    # The mean of the shares' statistics is not exactly that of the whole batch, but near it; one worker's own would be far.
    assert float((models[0].norm.running_mean - one.norm.running_mean).abs().max()) < 0.05
    assert int(models[0].norm.num_batches_tracked) == UPDATES


def test_the_same_loop_on_threads_is_the_simulated_one() -> None:
    # A simulation computes with one thread; with more, PyTorch adds in another order.
    torch.set_num_threads(1)
    for strategy in ("ssgd", "cpsgd"):
        logs: list[dict[int, Any]] = [{}, {}]

        def main(log: dict[int, Any], strategy: str = strategy) -> Any:
            return worker_main(VARIANTS["plain"], Indexed(), 2.0, log, strategy=strategy)

        real = paceline.threads(lambda: main(logs[0]), workers=3)  # noqa: B023
        [virtual] = paceline.simulate(lambda: main(logs[1]), workers=3)  # noqa: B023
        assert is_equal(real.returned[0][0], virtual.returned[0][0]), strategy
        assert logs[0] == logs[1]


def test_the_journal_of_a_simulated_run_is_always_the_same() -> None:
    hashes = set()
    for run in range(10):
        # However many threads PyTorch had before.
        torch.set_num_threads(1 + run % 4)
        hashes.add(simulated(VARIANTS["adamw"])[0].journal_hash)
    assert len(hashes) == 1


def test_a_worker_alone_learns_the_bits_of_the_bare_loop() -> None:
    # x * n / n need not be x: the gradient goes through a sum.
    data = Indexed()
    log: dict[int, Any] = {}
    model, _, status = worker_main(VARIANTS["plain"], data, 2.0, log)
    assert status.progress == 1.0 and status.members == (0,)
    assert sorted(index for batch in log[0] for index in batch) == sorted(2 * list(range(SAMPLES)))
