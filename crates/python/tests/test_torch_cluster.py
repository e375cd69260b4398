"""Workers that are processes, over TLS on this machine: launchers, kills, joins, leaves, signals."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_cluster import HERE, Cluster, Process, kill, pid_of  # noqa: E402
from torch_loops import Variant, alone  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.processes]


def far(state: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = [(state[name], other[name]) for name in state if state[name].is_floating_point()]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in pairs)


def are_equal(saved: list[dict[str, Any]]) -> bool:
    first = saved[0]["model"]
    return all(torch.equal(one["model"][name], first[name]) for one in saved for name in first)


def test_three_processes_learn_what_one_learns_whatever_their_seeds(tmp_path: Path) -> None:
    with Cluster(tmp_path, "3", epochs=5) as cluster:
        first, *others = workers = [cluster.join({"seed": seed}) for seed in (0, 7, 8)]
        cluster.begin(first)
        first.until(lambda: "joined as worker" in first.told())
        cluster.begin(*others)
        result = cluster.result()
        assert [worker.wait() for worker in workers] == [0, 0, 0], told(workers)
    assert result["ledger"] == {"done": 480, "lost": 0, "repeated": 0}
    saved = cluster.saved()
    assert len(saved) == 3 and are_equal(saved)
    assert sorted(index for one in saved for index in one["forwards"]) == sorted(5 * list(range(96)))
    assert far(saved[0]["model"], alone(Variant(), 20).state_dict()) < 1e-6


def sockets(process: int) -> set[str]:
    """The sockets that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("socket:")}


def told(workers: list[Process]) -> str:
    return "\n".join(worker.told() for worker in workers)


def test_a_kill_costs_nothing_and_a_newcomer_ends_bit_equal(tmp_path: Path) -> None:
    options = {"adamw": True, "bn": True, "decays": True, "pause": 0.1, "readers": 2}
    with Cluster(tmp_path, "2:", epochs=20) as cluster:
        workers = [cluster.join(options) for _ in range(4)]
        first, second, victim, newcomer = workers
        newcomer.until(lambda: newcomer.said("ready"))
        cluster.begin(first, second, victim)
        # Two are enough to begin: on a busy machine the third comes later.
        for worker in (first, second, victim):
            worker.until(lambda worker=worker: len(worker.said("updated")) >= 3)  # type: ignore[misc]
        # If its data loader's processes held its connections, nobody would see them close.
        readers = Path(f"/proc/{pid_of(victim)}/task/{pid_of(victim)}/children").read_text().split()
        assert len(readers) == 2
        assert all(not sockets(pid_of(victim)) & sockets(int(reader)) for reader in readers)
        kill(victim)
        killed = time.monotonic()
        first.until(lambda: any(line["at"] > killed + 0.3 for line in first.said("updated")))
        times = [line["at"] for line in first.said("updated")]
        longest = max(b - a for a, b in zip(times, times[1:], strict=False) if b > killed - 0.2)
        cluster.begin(newcomer)
        result = cluster.result()
        survivors = [first, second, newcomer]
        assert [worker.wait() for worker in survivors] == [0, 0, 0], told(survivors)
    assert longest < 2.0, f"training stood still for {longest:.2f} s after the kill"
    assert result["ledger"] == {"done": 20 * 96, "lost": 0, "repeated": 0}
    assert newcomer.said("updated")[0]["epoch"] > 0, "it joined in mid-run"
    saved = cluster.saved()
    assert len(saved) == 3 and are_equal(saved)
    moments = [one["optimizer"]["state"][0]["exp_avg_sq"] for one in saved]
    assert all(torch.equal(moments[0], moment) for moment in moments)
    assert len({one["optimizer"]["param_groups"][0]["lr"] for one in saved}) == 1


def test_sigterm_leaves_in_good_order_and_an_exception_ends_one_worker_only(tmp_path: Path) -> None:
    with Cluster(tmp_path, "1:", epochs=30) as cluster:
        stays, leaves, fails = workers = [cluster.join({"pause": 0.1, **more}) for more in ({}, {}, {"fails_at": 4})]
        cluster.begin(*workers)
        leaves.until(lambda: len(leaves.said("updated")) >= 3)
        os.kill(pid_of(leaves), signal.SIGTERM)
        assert leaves.wait(60) == 0, leaves.told()
        assert leaves.said("done")[0]["progress"] < 1.0
        assert fails.wait(60) == 1 and "RuntimeError: mine" in fails.told()
        assert "panicked" not in fails.told()
        result = cluster.result()
        assert stays.wait() == 0
    assert (result["ledger"]["lost"], result["ledger"]["repeated"]) == (0, 0)


def test_sigterm_to_paceline_reaches_the_program_and_a_second_one_ends_the_last_worker(tmp_path: Path) -> None:
    with Cluster(tmp_path, "1:", epochs=1000) as cluster:
        stays, leaves = workers = [cluster.join({"pause": 0.05}) for _ in range(2)]
        cluster.begin(*workers)
        for worker in workers:
            worker.until(lambda worker=worker: len(worker.said("updated")) >= 3)  # type: ignore[misc]
        leaves.signal(signal.SIGTERM)
        assert leaves.wait(20) == 0 and leaves.said("done"), leaves.told()
        # Somebody must keep what was learned: the last worker stays, until it is told again.
        stays.signal(signal.SIGTERM)
        stays.until(lambda: "another SIGTERM ends it at once" in stays.told())
        known = len(stays.said("updated"))
        stays.until(lambda: len(stays.said("updated")) > known + 5)
        stays.signal(signal.SIGTERM)
        assert stays.wait(10) != 0, stays.told()


def test_the_first_worker_may_die_before_it_has_offered_its_parameters(tmp_path: Path) -> None:
    with Cluster(tmp_path, "2:", epochs=5) as cluster:
        first, *others = workers = [cluster.join({"seed": seed}) for seed in (0, 7, 8)]
        cluster.begin(first)
        [initial] = first.until(lambda: list((tmp_path / "state").rglob("initial")))
        kill(first)
        first.wait()
        initial.unlink()
        cluster.begin(*others)
        result = cluster.result()
        assert [worker.wait() for worker in others] == [0, 0], told(workers)
    assert result["ledger"] == {"done": 480, "lost": 0, "repeated": 0}
    saved = cluster.saved()
    assert len(saved) == 2 and are_equal(saved)


def test_nothing_hangs_when_workers_end_early(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {}, {"exits_at": 4}, {"breaks_at": 5}]
    with Cluster(tmp_path, "1:", epochs=40) as cluster:
        stays, interrupted, exits, breaks = workers = [cluster.join({"pause": 0.1, **kind}) for kind in kinds]
        cluster.begin(*workers)
        interrupted.until(lambda: len(interrupted.said("updated")) >= 3)
        since = time.monotonic()
        os.kill(pid_of(interrupted), signal.SIGINT)
        codes = [worker.wait(60) for worker in (interrupted, exits, breaks)]
        assert time.monotonic() - since < 30.0
        assert codes[0] != 0 and codes[1:] == [3, 0], (codes, told(workers))
        assert (cluster.result()["ledger"]["lost"], stays.wait()) == (0, 0)


#: Seconds of a forward pass that is slow and not dead. `PACELINE_TEST_NAP=60` takes longer.
NAP = float(os.environ.get("PACELINE_TEST_NAP", "9"))


def test_a_worker_that_naps_stays_and_one_that_is_stopped_comes_back(tmp_path: Path) -> None:
    with Cluster(tmp_path, "1:", "--patience", "3", epochs=60) as cluster:
        # A forward pass that takes much longer than the patience of 3 s is slow, not dead.
        first, naps, stopped = workers = [
            cluster.join({"pause": 0.1, **more}) for more in ({}, {"naps_at": 2, "nap": NAP}, {})
        ]
        cluster.begin(*workers)
        naps.until(lambda: naps.said("napping"))
        os.kill(pid_of(stopped), signal.SIGSTOP)
        time.sleep(NAP + 3.0)
        os.kill(pid_of(stopped), signal.SIGCONT)
        result = cluster.result()
        assert [worker.wait() for worker in workers] == [0, 0, 0], told(workers)
        assert "joining again" in stopped.told(), stopped.told()
        assert "joining again" not in naps.told()
    assert (result["ledger"]["lost"], result["ledger"]["repeated"]) == (0, 0)
    assert are_equal(cluster.saved())


def test_another_model_and_another_batch_are_refused_with_what_differs(tmp_path: Path) -> None:
    with Cluster(tmp_path, "2", epochs=1) as cluster:
        options: list[dict[str, Any]] = [{}, {"wide": 12}, {"batch": 5}, {"join": {"epochs": 9}}]
        first, other, batch, epochs = [cluster.join(option) for option in options]
        cluster.begin(first)
        first.until(lambda: "joined as worker" in first.told())
        cluster.begin(other, batch, epochs)
        assert [worker.wait(60) for worker in (other, batch, epochs)] == [1, 1, 1]
        assert "head.weight" in other.told() and "paceline.errors.Refused" in other.told()
        assert "the loader's batch_size is 5" in batch.told()
        assert "epochs = 9" in epochs.told()


def launched(out: Path, environments: list[dict[str, str]], options: dict[str, Any]) -> list[Process]:
    command = [sys.executable, "cluster_train.py", str(out), json.dumps(options)]
    return [Process(command, environment) for environment in environments]


def test_the_environment_of_slurm_is_understood(tmp_path: Path) -> None:
    common = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": f"test{os.getpid()}", "SLURM_STEP_ID": "0"}
    workers = launched(tmp_path, [common | {"SLURM_PROCID": str(rank)} for rank in (0, 1)], {"join": {"epochs": 3}})
    codes = [worker.wait() for worker in workers]
    assert codes == [0, 0], "\n".join(worker.told() for worker in workers)
    saved = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(saved) == 2 and are_equal(saved)


def test_workers_of_a_launcher_outlive_one_of_them(tmp_path: Path) -> None:
    common = {"SLURM_NTASKS": "3", "SLURM_NNODES": "1", "SLURM_JOB_ID": f"kill{os.getpid()}", "SLURM_STEP_ID": "0"}
    environments = [common | {"SLURM_PROCID": str(rank)} for rank in range(3)]
    first, second, victim = launched(tmp_path, environments, {"join": {"epochs": 10}, "pause": 0.1})
    victim.until(lambda: len(victim.said("updated")) >= 3)
    os.kill(pid_of(victim), signal.SIGKILL)
    assert [first.wait(), second.wait()] == [0, 0], told([first, second])
    saved = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(saved) == 2 and are_equal(saved)


@pytest.mark.skipif("PACELINE_SRUN" not in os.environ, reason="Slurm is not running; .ci/slurm starts it")
def test_srun_starts_workers_that_outlive_one_of_them(tmp_path: Path) -> None:
    command = [*os.environ["PACELINE_SRUN"].split(), "--ntasks", "3", "--kill-on-bad-exit=0", sys.executable, "cluster_train.py"]
    run = Process([*command, str(tmp_path), json.dumps({"join": {"epochs": 10}, "pause": 0.1})])
    run.until(lambda: len(run.said("updated")) >= 9)
    # The first process runs the coordinator.
    [victim] = [line["pid"] for line in run.said("joined") if line["rank"] == "2"]
    os.kill(victim, signal.SIGKILL)
    run.wait()
    saved = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(saved) == 2 and are_equal(saved), run.told()
    assert [line["progress"] for line in run.said("done")] == [1.0, 1.0]


def test_torchrun_and_ddp_agree(tmp_path: Path) -> None:
    options = {"join": {"epochs": 3}}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = Process([*command, "cluster_train.py", str(tmp_path), json.dumps(options)])
    assert run.wait(120) == 0, run.told()
    saved = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(saved) == 2 and are_equal(saved)
    compared = Process([*command, str(HERE / "ddp_train.py"), str(tmp_path / "ddp.pt")])
    assert compared.wait(120) == 0, compared.told()
    ddp = torch.load(tmp_path / "ddp.pt")
    assert far(saved[0]["model"], ddp) < 1e-6
