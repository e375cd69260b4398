"""`paceline.fit`: a gradient that is a function, on the simulator and on threads."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import paceline
import pytest
from paceline import demo

numpy = pytest.importorskip("numpy")


def test_the_demo_learns_digits_on_a_simulated_cluster() -> None:
    outcome = demo.train("ssgd")
    assert outcome.accuracy is not None and outcome.accuracy > 0.93
    assert outcome.result["ledger"] == {"done": outcome.samples, "lost": 0, "repeated": 0}
    assert demo.train("dbs").seconds < outcome.seconds, "shares follow speed"


@pytest.mark.parametrize("strategy", [name for name, *_ in paceline._paceline.recipes()])
def test_every_strategy_trains_a_function(strategy: str) -> None:
    outcome = demo.train(strategy, epochs=2, workers=4)
    assert outcome.result["ledger"]["lost"] == outcome.result["ledger"]["repeated"] == 0
    assert outcome.diverged is None


def test_the_same_seed_gives_the_same_journal_and_another_one_another() -> None:
    hashes = [demo.train("abs", epochs=1, seed=seed).journal_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_simulated_and_real_workers_end_with_the_same_bits() -> None:
    for strategy in ("ssgd", "cpsgd"):
        ends = [demo.train(strategy, epochs=1, workers=3, on=on) for on in ("simulate", "threads")]
        first, second = (numpy.frombuffer(end.params, dtype=numpy.float32) for end in ends)
        assert (first == second).all(), strategy


def test_one_worker_with_the_whole_batch_learns_the_same() -> None:
    plan: dict[str, Any] = {"epochs": 1, "optimizer": paceline.SGD(0.1, momentum=0.9)}
    many = demo.train("ssgd", workers=4, batch=8, **plan)
    one = demo.train("ssgd", workers=1, batch=32, **plan)
    assert numpy.allclose(_array(many), _array(one), atol=1e-5)


def _array(outcome: paceline.Outcome) -> Any:
    return numpy.frombuffer(outcome.params, dtype=numpy.float32)


def test_weights_replace_the_number_of_samples() -> None:
    data = numpy.arange(1, 65, dtype=numpy.float32)

    def weighted(params: Any, batch: Any) -> tuple[Any, float, float]:
        return numpy.array([-(batch * batch).sum()], numpy.float32), 0.0, float(batch.sum())

    outcome = paceline.fit(weighted, [0.0], data, workers=2, batch=32, optimizer=paceline.SGD(1.0))
    expected = float((data * data).sum() / data.sum())
    assert _array(outcome)[0] == pytest.approx(expected)


@pytest.mark.parametrize("on", ["simulate", "threads"])
def test_an_exception_in_the_gradient_ends_the_run_and_is_raised(on: str) -> None:
    calls = []

    def broken(params: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise KeyError("mine")
        return demo.gradient(params, batch)

    with pytest.raises(KeyError, match="mine"):
        demo_fit(broken, on=on)
    assert len(calls) < 40


def demo_fit(gradient: Any, **options: Any) -> paceline.Outcome:
    return paceline.fit(gradient, demo.initial(), demo.digits()[0], **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "ssgdd"}, "there is no strategy `ssgdd`, did you mean|there is no strategy"),
        ({"scenario": "nosuch"}, "there is no scenario"),
        ({"scenario": {"wokers": 3}}, "scenario: unknown field `wokers`"),
        ({"on": "moon"}, 'choose "simulate", "threads" or "cluster"'),
        ({"on": "cluster"}, "this process is in none"),
        ({"epochs": -1}, "epochs = -1: give a number above zero"),
        ({"workers": 0}, "at least one worker|no workers|workers"),
        ({"optimizer": paceline.SGD(0.1, momentum=1.5)}, "momentum"),
        ({"initial": [[0.0, 1.0]]}, "one flat array"),
        ({"dataset": []}, "no samples"),
        ({"dataset": 7}, "no length"),
        ({"dataset": ([1, 2], [1])}, "differ in length"),
        ({"gradient": lambda p, b: (p[:3], 1.0)}, "returned 3 numbers for 2410 parameters"),
        ({"gradient": lambda p, b: 3.0}, "must return"),
        ({"evaluate": demo.evaluate}, "give test="),
        ({"checkpoints": "x"}, "a simulated run is not saved"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(change: dict[str, Any], message: str) -> None:
    plan: dict[str, Any] = {"gradient": demo.gradient, "initial": demo.initial(), "dataset": demo.digits()[0]}
    plan |= change
    with pytest.raises(paceline.Refused, match=message) as refused:
        paceline.fit(plan.pop("gradient"), plan.pop("initial"), plan.pop("dataset"), **plan)
    assert "\n" not in str(refused.value)


def test_parameters_are_read_only() -> None:
    def writes(params: Any, batch: Any) -> Any:
        params[0] = 1.0
        return params, 0.0

    with pytest.raises(ValueError, match="read-only"):
        demo_fit(writes)


def test_ctrl_c_ends_a_run_on_threads(tmp_path: Path) -> None:
    code = (
        "from paceline import demo\n"
        "def slow(p, b):\n"
        "    import time; time.sleep(0.01); return demo.gradient(p, b)\n"
        "import paceline; print('begun', flush=True)\n"
        "paceline.fit(slow, demo.initial(), demo.digits()[0], on='threads', epochs=1000)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    time.sleep(1.0)
    since = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    errors = child.communicate(timeout=30)[1]
    assert time.monotonic() - since < 5.0
    assert "KeyboardInterrupt" in errors
    assert child.returncode == -signal.SIGINT or child.returncode == 1


def test_a_run_on_threads_is_saved_and_resumed(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    plan: dict[str, Any] = {"on": "threads", "workers": 2, "scenario": "uniform"}
    first = demo.train("ssgd", epochs=1, checkpoints=folder, **plan)
    resumed = demo.train("ssgd", epochs=3, resume=folder, **plan)
    assert resumed.result["ledger"] == {"done": 3 * first.samples, "lost": 0, "repeated": 0}
    assert resumed.loss is not None and first.loss is not None and resumed.loss < 0.8 * first.loss


def test_processes_of_a_launcher_train_a_function_as_the_simulator_does(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, paceline\n"
        "from paceline import demo\n"
        "optimizer = paceline.SGD(0.1, momentum=0.9)\n"
        "outcome = paceline.fit(demo.gradient, demo.initial(), demo.digits()[0], on='cluster', epochs=1, batch=16, optimizer=optimizer)\n"
        "numpy.save(sys.argv[1], numpy.frombuffer(outcome.params, dtype=numpy.float32))\n"
    )
    common = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": f"fit{os.getpid()}", "SLURM_STEP_ID": "0"}
    files = [str(tmp_path / f"{rank}.npy") for rank in (0, 1)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, file], env=os.environ | common | {"SLURM_PROCID": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank, file in enumerate(files)
    ]
    told = [worker.communicate(timeout=200)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    simulated = demo_fit(demo.gradient, workers=2, epochs=1, batch=16, optimizer=paceline.SGD(0.1, momentum=0.9))
    first, second = (numpy.load(file) for file in files)
    assert (first == second).all()
    assert numpy.allclose(first, _array(simulated), rtol=1e-5, atol=1e-6)
