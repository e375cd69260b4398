"""What users write, on processes whose speeds differ; and processes that are interrupted wherever they wait."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_torch_cluster import are_equal, told  # noqa: E402
from torch_cluster import HERE, Cluster, pid_of  # noqa: E402
from torch_loops import SAMPLES, TOTAL, UPDATES, VARIANTS, assert_same, build  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.processes]


@pytest.fixture(scope="module")
def workers() -> Iterator[list["subprocess.Popen[str]"]]:
    """Three processes of which one is three and one five times as slow; they train one job after the other."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "variants_train.py", str(pause)], stdin=pipe, stdout=pipe, text=True, env=env, cwd=HERE)
        for pause in (0.001, 0.0032, 0.0053)
    ]
    for worker in started:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("name", VARIANTS)
def test_uneven_processes_learn_what_one_learns(name: str, workers: list["subprocess.Popen[str]"], tmp_path: Path) -> None:
    variant = VARIANTS[name]
    with Cluster(tmp_path, "3", epochs=UPDATES * TOTAL / SAMPLES, strategy="lb-bsp") as cluster:
        job = {"variant": name, "address": cluster.address, "token": cluster.token.read_text().strip(), "out": str(cluster.out)}
        for worker in workers:
            assert worker.stdin is not None
            print(json.dumps(job), file=worker.stdin, flush=True)
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline() == "done\n"
        result = cluster.result()
    assert result["ledger"] == {"done": UPDATES * TOTAL, "lost": 0, "repeated": 0}
    saved = sorted(cluster.saved(), key=lambda one: int(one["worker"]))
    assert len(saved) == 3 and are_equal(saved), "replicas are bit-equal"
    shares = None
    if not variant.steps:
        shares = list(zip(*([len(batch) for batch in one["shares"]] for one in saved), strict=True))
        assert any(max(sizes) >= 2 * min(sizes) for sizes in shares), f"the shares are uneven: {shares}"
    # Samples are dealt ahead: with other shares, an update has not just the next ones.
    taken = [[index for share in update for index in share] for update in zip(*(one["shares"] for one in saved), strict=True)]
    assert sorted(index for update in taken for index in update) == sorted(UPDATES * TOTAL // SAMPLES * list(range(SAMPLES)))
    model, _ = build(variant)
    model.load_state_dict(saved[0]["model"])
    assert_same(variant, model, shares, taken)


def test_ctrl_c_ends_a_worker_that_computes_reads_or_waits_for_others(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"naps_at": 3, "nap": 600.0}, {"stalls_at": 28}, {}]
    # All four begin together, so that one naps and another one stalls in the same round.
    with Cluster(tmp_path, "4:", epochs=6) as cluster:
        stays, computes, reads, waits = processes = [cluster.join({"pause": 0.02, **kind}) for kind in kinds]
        cluster.begin(*processes)
        computes.until(lambda: computes.said("napping"))
        reads.until(lambda: reads.said("stalled"))
        time.sleep(1.0)
        for worker in (waits, reads, computes):
            assert worker.child.poll() is None and stays.child.poll() is None
            since = time.monotonic()
            os.kill(pid_of(worker), signal.SIGINT)
            assert worker.wait(60) != 0
            assert time.monotonic() - since < 5.0, worker.told()
            assert "KeyboardInterrupt" in worker.told() and "panicked" not in worker.told(), worker.told()
        others = [cluster.join({}) for _ in range(3)]
        cluster.begin(*others)
        result = cluster.result()
        assert [worker.wait() for worker in (stays, *others)] == [0, 0, 0, 0], told([stays, *others])
    assert result["ledger"] == {"done": 6 * SAMPLES, "lost": 0, "repeated": 0}


def test_workers_whose_coordinator_is_gone_for_good_finish_and_say_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, "2", "--patience", "0.5", epochs=12) as cluster:
        processes = [cluster.join({"pause": 0.1}) for _ in range(2)]
        cluster.begin(*processes)
        processes[0].until(lambda: len(processes[0].said("updated")) >= 3)
        cluster.coordinator.signal(signal.SIGKILL)
        codes = [worker.wait(60) for worker in processes]
        assert codes == [1, 1], told(processes)
        for worker in processes:
            assert "the coordinator is gone" in worker.told() and "panicked" not in worker.told(), worker.told()
            assert worker.said("updated")[-1]["updates"] == 12 * SAMPLES // 16
    # The first member saves, and another one that finishes after the first one's end.
    assert list(cluster.out.glob("paceline-runs/rescued-*/*/weights.safetensors"))
