"""DDP + checkpoint under torchrun: one agent with 4 workers (variant ""), or 4 agents of one worker (variant "nodes").
Not forked by drive.py: torchrun starts `peer_torchrun.py`, which is peer_ddp.py's worker."""
import json, os, socket, sys
from types import SimpleNamespace


def services(run):
    o = run.o
    opts = dict(vars(o)); opts["dir"] = run.dir
    env = dict(os.environ, PEER_OPTS=json.dumps(opts), OMP_NUM_THREADS="1")
    if o.variant != "shipped":      # 2.15 reuses one store for all attempts: restarted workers may read dead addresses
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    nodes = o.variant == "nodes"
    cmd = [torchrun, "--nnodes", f"1:{o.world}" if nodes else "1", "--nproc-per-node", "1" if nodes else str(o.world),
           "--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "peers",
           "--local-addr", "127.0.0.1", os.path.abspath(__file__)]
    agents = [run.helper(f"agent{i}", cmd, env) for i in range(o.world if nodes else 1)]
    return {"cmd": cmd, "agents": [a.pid for a in agents]}


if __name__ == "__main__":
    import task, peer_ddp
    o = SimpleNamespace(**json.loads(os.environ["PEER_OPTS"]))
    o.rank, o.world, o.variant = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "even"
    peer_ddp.worker(task.Worker(o, {"restart": os.environ.get("TORCHELASTIC_RESTART_COUNT")}))
