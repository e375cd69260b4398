"""Runs one contestant through one scenario and writes JSON.  See README.md.
   drive.py faults|uneven|overhead --peer NAME [options]"""
import argparse, glob, importlib, json, os, random, shutil, signal, statistics as st, subprocess, sys, time
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import links
CG = "/sys/fs/cgroup/cpu"
RUNS = []


class Run:
    """Starts, kills and tails the workers of one run. Only ever signals processes it started."""
    def __init__(self, o, name):
        self.o, self.name = o, name
        RUNS.append(self)
        self.dir = o.dir = os.path.join(o.out, "logs", name)
        shutil.rmtree(self.dir, ignore_errors=True); os.makedirs(self.dir)
        self.pids, self.helpers, self.events, self.at, self.cgs = {}, [], [], {}, []
        self.exited = {}
        self.peer = None
        self.extra = {}
        self.peer = importlib.import_module("peer_" + o.peer)
        self.extra = self.peer.services(self) if hasattr(self.peer, "services") else {}

    def helper(self, name, cmd, env=None):
        log = open(f"{self.dir}/{name}.log", "wb")
        p = subprocess.Popen(cmd, stdout=log, stderr=log, start_new_session=True, env=env)
        self.helpers.append(p)
        return p

    def start(self, rank):
        """Fork a worker (torch is already imported here, so start-up is milliseconds)."""
        import task
        n = len([1 for e in self.events if e["ev"] == "start" and e["rank"] == rank])
        pid = os.fork()
        if pid == 0:
            os.setsid()
            fd = os.open(f"{self.dir}/w{rank}.{n}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(fd, 1); os.dup2(fd, 2)
            code = 1
            try:
                if self.o.quota: self.join_cgroup(rank)
                if self.o.link:
                    links.enter(links.name(rank))
                    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
                o = SimpleNamespace(**vars(self.o)); o.rank = rank
                self.peer.worker(task.Worker(o, self.extra))
                code = 0
            except BaseException:
                import traceback; traceback.print_exc(); sys.stderr.flush()
            os._exit(code)
        self.pids[rank] = pid
        self.exited.pop(rank, None)
        return pid

    def join_cgroup(self, rank):
        g = f"{CG}/paceline_w{rank}"
        os.makedirs(g, exist_ok=True)
        period = 50000
        open(f"{g}/cpu.cfs_period_us", "w").write(str(period))
        open(f"{g}/cpu.cfs_quota_us", "w").write(str(int(period * self.o.quota[rank])))
        open(f"{g}/cgroup.procs", "w").write(str(os.getpid()))

    def kill(self, rank, sig=signal.SIGKILL):
        """Signals the worker's whole session, as a machine's death would."""
        try: os.killpg(self.pids[rank], sig)
        except ProcessLookupError: pass
        if sig == signal.SIGKILL:
            try: os.waitpid(self.pids[rank], 0)
            except ChildProcessError: pass

    def alive(self, rank):
        if rank in self.exited: return False
        try: pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
        except ChildProcessError: return False
        if pid: self.exited[rank] = (time.time(), status)
        return pid == 0

    def poll(self):
        new = []
        for p in glob.glob(f"{self.dir}/w*.jsonl"):
            with open(p) as f:
                f.seek(self.at.get(p, 0))
                while True:
                    line = f.readline()
                    if not line.endswith("\n"): break
                    self.at[p] = f.tell()
                    new.append(json.loads(line))
        new.sort(key=lambda e: e["t"])
        self.events += new
        return new

    def wait(self, cond, timeout, every=0.03, need=()):
        """Until cond() or timeout; gives up early if a worker of `need` has exited."""
        end = time.time() + timeout
        while time.time() < end:
            self.poll()
            if cond(): return True
            if not all([self.alive(r) for r in need]): return False
            time.sleep(every)
        return False

    def steps(self, rank=None, after=0.0, **want):
        return [e for e in self.events if e["ev"] == "step" and e["t"] > after and (rank is None or e["rank"] == rank)
                and all(e[k] == v for k, v in want.items())]

    def stop(self):
        if hasattr(self.peer, "after") and self.helpers:
            self.helpers[0].terminate()         # the coordinator ends the job in good order while it has workers
            try: self.helpers[0].wait(20)
            except subprocess.TimeoutExpired: pass
        for r in list(self.pids):
            self.kill(r); del self.pids[r]
        while self.helpers:
            p = self.helpers.pop(0)
            p.terminate()                       # torchrun ends its own workers on SIGTERM
            try: p.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL); p.wait()
        self.poll()


def accounting(events):
    """Samples by the workers' own logs, per epoch: applied once, applied again, drawn but never applied."""
    applied, drawn, zeroed = {}, set(), 0
    for e in events:
        if e["ev"] != "step": continue
        for i in e["idx"]:
            k = (e["epoch"], i)
            drawn.add(k)
            if e["ok"] and e["part"]: applied[k] = applied.get(k, 0) + 1
        if e["ok"] and not e["part"]: zeroed += e["n"]
    return {"drawn": len(drawn), "applied_distinct": len(applied),
            "repeated": sum(c - 1 for c in applied.values()),
            "drawn_never_applied": len(drawn - set(applied)), "committed_with_zero_gradient": zeroed}


def gap(steps, t0, t1=float("inf")):
    """Longest time between two consecutive applied steps of one worker, the later one in (t0, t1)."""
    ts = [e["t"] for e in steps if e["ok"]]
    return max((b - a for a, b in zip(ts, ts[1:]) if t0 < b and a < t1), default=None)


def save(o, res):
    res["loadavg"] = os.getloadavg()
    json.dump(res, open(f"{o.out}/{o.scenario}-{o.tag}.json", "w"), indent=1)


def faults(o):
    run = Run(o, f"faults-{o.tag}")
    res = {"scenario": "faults", "peer": o.peer, "opts": vars(o), "extra": run.extra, "kills": []}
    rng = random.Random(o.seed)
    for r in range(o.world):
        run.start(r)
        if o.peer == "hivemind": time.sleep(0.5)
    ok = run.wait(lambda: all(len(run.steps(r, ok=True)) >= o.warm for r in range(o.world)), 180)
    res["started"] = ok
    period = [b["t"] - a["t"] for r in range(o.world) for a, b in zip(*(lambda s: (s[1:], s[2:]))(run.steps(r, ok=True)))]
    res["commit_period_median"] = st.median(period) if period else None
    for k in range(o.kills if ok else 0):
        if not all([run.alive(r) for r in range(o.world)]): break
        run.wait(lambda: False, rng.uniform(*o.between))
        v = rng.randrange(o.world)
        others = [r for r in range(o.world) if r != v]
        t0 = time.time(); run.kill(v)
        got = run.wait(lambda: all(any(e["members"] < o.world or o.peer == "hivemind" for e in run.steps(r, t0 + 0.02, ok=True)) for r in others), o.limit, need=others)
        died = [r for r in others if not run.alive(r)]
        first = {r: next((e["t"] - t0 for e in run.steps(r, t0 + 0.02, ok=True)), None) for r in others}
        fresh = {r: next((e["t"] - t0 for e in run.steps(r, t0, ok=True) if e["members"] < o.world), None) for r in others}
        run.wait(lambda: False, o.down)
        if died: print("survivors died", died, "after", [run.exited[r][0] - t0 for r in died], flush=True)
        t1 = time.time(); run.start(v)
        joined, tries = False, 1
        while not died and not joined:      # a newcomer that dies while starting is started again
            joined = run.wait(lambda: run.steps(v, t1, ok=True, part=True), o.limit, need=[v])
            if joined or run.alive(v) or tries == 3: break
            tries += 1; run.start(v)
        ready = next((e["t"] - t1 for e in run.events if e["ev"] == "ready" and e["rank"] == v and e["t"] > t1), None)
        tj = next((e["t"] - t1 for e in run.steps(v, t1, ok=True, part=True)), None)
        run.wait(lambda: all(len(run.steps(r, t1 + (tj or 0), ok=True)) >= 3 for r in others), 30)
        row = {"victim": v, "resumed": got, "survivors_dead": died, "first_commit": first, "first_commit_without_victim": fresh,
               "gap": {r: gap(run.steps(r), t0, t1) for r in others},
               "lost_in_failed_steps": sum(e["n"] for e in run.steps(after=t0) if not e["ok"] and e["t"] < t1),
               "down": t1 - t0, "newcomer_starts": tries, "newcomer_ready": ready, "newcomer_first_step": tj,
               "gap_while_joining": {r: gap(run.steps(r), t1, t1 + (tj or 0) + 2) for r in others}}
        res["kills"].append(row)
        save(o, res)
        print(k, json.dumps(row), flush=True)
        if not joined or not got: break
    run.stop()
    res["accounting"] = accounting(run.events)
    if hasattr(run.peer, "after"): res["after"] = run.peer.after(run)
    return res


def stalls(o):
    """SIGSTOP one worker for o.hold seconds, then SIGCONT; afterwards kill the helper (lighthouse), if any."""
    run = Run(o, f"stalls-{o.tag}")
    res = {"scenario": "stalls", "peer": o.peer, "opts": vars(o), "extra": run.extra, "kills": []}
    for r in range(o.world):
        run.start(r)
        if o.peer == "hivemind": time.sleep(0.5)
    everyone = list(range(o.world))
    run.wait(lambda: all(len(run.steps(r, ok=True)) >= o.warm for r in everyone), 180)
    for k in range(o.kills):
        v = k % o.world
        others = [r for r in everyone if r != v]
        run.wait(lambda: False, 2)
        t0 = time.time(); run.kill(v, signal.SIGSTOP)
        run.wait(lambda: False, o.hold)
        t1 = time.time(); run.kill(v, signal.SIGCONT)
        back = run.wait(lambda: run.steps(v, t1 + 0.05, ok=True, part=True), o.limit, need=[v])
        row = {"victim": v, "held": t1 - t0, "gap": {r: gap(run.steps(r), t0) for r in others},
               "commits_while_held": {r: len([e for e in run.steps(r, t0 + 0.1, ok=True) if e["t"] < t1]) for r in others},
               "first_commit_after_stop": {r: next((e["t"] - t0 for e in run.steps(r, t0 + 0.1, ok=True)), None) for r in others},
               "back_after_cont": next((e["t"] - t1 for e in run.steps(v, t1 + 0.05, ok=True, part=True)), None),
               "alive": {r: run.alive(r) for r in everyone}}
        res["kills"].append(row); save(o, res)
        print(json.dumps(row), flush=True)
        if not all(row["alive"].values()) or not back: break
    if run.helpers and all([run.alive(r) for r in everyone]):
        run.wait(lambda: False, 2)
        t0 = time.time(); run.helpers[0].kill(); run.helpers[0].wait()
        run.wait(lambda: not any([run.alive(r) for r in everyone]), o.limit)
        res["helper_killed"] = {"last_commit": {r: max((e["t"] - t0 for e in run.steps(r, ok=True)), default=None) for r in everyone},
                                "exited": {r: run.exited[r][0] - t0 if r in run.exited else None for r in everyone}}
        print(json.dumps(res["helper_killed"]), flush=True)
    run.stop()
    return res


def restarts(o):
    """torchrun: kill one worker by the pid in its own log; everything restarts from the checkpoint."""
    run = Run(o, f"restarts-{o.tag}")
    res = {"scenario": "restarts", "peer": o.peer, "opts": vars(o), "extra": run.extra, "kills": []}
    rng = random.Random(o.seed)
    mark = 0.0
    for k in range(o.kills + 1):
        ok = run.wait(lambda: len([e for e in run.steps(after=mark) if e["rank"] == 0]) >= o.warm, o.limit)
        if not ok or k == o.kills: break
        run.wait(lambda: False, rng.uniform(*o.between))
        last = {e["rank"]: e for e in run.steps()}
        v = rng.choice(sorted(last)[:last[0]["members"]])
        done = max(e["step"] for e in run.steps())
        t0 = time.time(); os.kill(last[v]["pid"], signal.SIGKILL)
        run.wait(lambda: any(e["ev"] == "ready" and e["t"] > t0 + 0.5 for e in run.events), o.limit)
        new = next((e["t"] for e in run.events if e["ev"] == "start" and e["t"] > t0 + 0.02), None)
        got = run.wait(lambda: new and run.steps(after=new), o.limit)
        done = max(e["step"] for e in run.steps() if e["t"] < (new or 9e99))
        caught = run.wait(lambda: any(e["step"] > done for e in run.steps(after=new or 9e99)), o.limit)
        s = run.steps(after=new or 9e99)
        resumed = next((e["resumed"] for e in run.events if e["ev"] == "ready" and e["t"] > (new or 9e99)), None)
        row = {"victim": v, "next_step": s[0]["t"] - t0 if s else None, "first_new_process": new and new - t0,
               "ready": next((e["t"] - t0 for e in run.events if e["ev"] == "ready" and e["t"] > (new or 9e99)), None),
               "beyond_old_step": next((e["t"] - t0 for e in s if e["step"] > done), None), "world_after": s[0]["members"] if s else None,
               "old_step": done, "resumed_from": resumed, "steps_repeated": done - resumed if resumed is not None else None}
        mark = s[0]["t"] if s else time.time()
        res["kills"].append(row); save(o, res)
        print(k, json.dumps(row), flush=True)
        if not caught: break
    run.stop()
    res["accounting"] = accounting(run.events)
    return res


def uneven(o):
    out = []
    for seed in o.seeds:
        o.seed = seed
        run = Run(o, f"uneven-{o.tag}-s{seed}")
        for r in range(o.world):
            run.start(r)
        run.wait(lambda: all(any(e["ev"] == "ready" and e["rank"] == r for e in run.events) for r in range(o.world)), 120)
        t0 = max((e["t"] for e in run.events if e["ev"] == "ready"), default=time.time())
        seen, hit, deadline = 0, None, time.time() + o.limit

        def reached():
            nonlocal hit
            s = run.steps()
            tot = n = 0
            for e in reversed(s):            # sample-weighted mean over the last `window` samples of all workers
                tot += e["loss"] * e["n"]; n += e["n"]
                if n >= o.window: break
            if n >= o.window and tot / n < o.target: hit = (s[-1]["t"], tot / n)
            return hit is not None
        run.wait(reached, o.limit)
        end = hit[0] if hit else time.time()
        ev = [e for e in run.events if e["ev"] == "step" and e["t"] <= end]
        use = {}
        for r in range(o.world):            # from the start of the clock: seconds of emulated compute, or CPU seconds over quota
            mine = [e for e in ev if e["rank"] == r]
            base = ([e for e in mine if e["t"] <= t0] or mine)[-1 if mine and mine[0]["t"] <= t0 else 0] if mine else None
            if o.quota: use[r] = (mine[-1]["cpu"] - base["cpu"]) / (end - t0) / o.quota[r] if mine else 0
            else: use[r] = (mine[-1]["slept"] - (base["slept"] if base["t"] <= t0 else 0)) / (end - t0) if mine else 0
        row = {"seed": seed, "reached": hit is not None, "seconds": end - t0, "samples": sum(e["n"] for e in ev),
               "samples_before_clock": sum(e["n"] for e in ev if e["t"] < t0), "updates": len({e["step"] for e in ev if e["ok"]}),
               "utilisation": {r: round(u, 3) for r, u in use.items()}, "loadavg": os.getloadavg()[0]}
        run.stop()
        out.append(row); print(json.dumps(row), flush=True)
    return {"scenario": "uneven", "peer": o.peer, "opts": vars(o), "runs": out,
            "median_seconds": st.median(r["seconds"] for r in out), "median_samples": st.median(r["samples"] for r in out)}


def overhead(o):
    """Peers, sizes and numbers of processes interleaved, so that a busy minute hits all of them alike."""
    rows = []
    for rep in range(o.reps):
        for o.model in o.models:
            for o.world in o.worlds:
                for o.peer in o.peers:
                    if o.world == 1 and o.peer != "alone": continue
                    o.max_steps = o.steps_of[o.model]
                    run = Run(o, f"overhead-{o.peer}-{o.model}-{o.world}-{rep}")
                    for r in range(o.world): run.start(r)
                    run.wait(lambda: sum(e["ev"] == "end" for e in run.events) == o.world, o.limit)
                    run.stop()
                    per, cpu = [], []
                    for r in range(o.world):
                        s = run.steps(r)[5:]
                        per += [b["t"] - a["t"] for a, b in zip(s, s[1:])]
                        if len(s) > 2: cpu.append((s[-1]["cpu"] - s[0]["cpu"]) / (len(s) - 1))
                    rows.append({"peer": o.peer, "model": o.model, "world": o.world, "rep": rep, "n": len(per),
                                 "step_ms": 1e3 * st.median(per), "p90_ms": 1e3 * sorted(per)[int(.9 * len(per))],
                                 "cpu_ms": 1e3 * st.mean(cpu), "load": os.getloadavg()[0]} if per else {"peer": o.peer, "failed": True})
                    print(json.dumps(rows[-1]), flush=True)
    return {"scenario": "overhead", "opts": vars(o), "rows": rows}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("scenario", choices=["faults", "stalls", "restarts", "uneven", "overhead"])
    a.add_argument("--peer")
    a.add_argument("--peers", nargs="+", default=["alone", "ddp", "torchft"]); a.add_argument("--models", nargs="+", default=["1m", "11m"])
    a.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    a.add_argument("--tag"); a.add_argument("--out", default=os.path.join(HERE, "results"))
    a.add_argument("--world", type=int, default=4); a.add_argument("--batch", type=int, default=16)
    a.add_argument("--model", default="100k"); a.add_argument("--lr", type=float, default=0.2)
    a.add_argument("--seed", type=int, default=0); a.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    a.add_argument("--n", type=int); a.add_argument("--shuffle", type=int)
    a.add_argument("--sec-per-sample", type=float, nargs="*")
    a.add_argument("--burn", type=int, default=0); a.add_argument("--quota", type=float, nargs="*")
    a.add_argument("--limit", type=float, default=180); a.add_argument("--max-steps", type=int, default=0)
    a.add_argument("--kills", type=int, default=10); a.add_argument("--warm", type=int, default=20)
    a.add_argument("--between", type=float, nargs=2, default=[2, 5]); a.add_argument("--down", type=float, default=1.0); a.add_argument("--hold", type=float, default=20)
    a.add_argument("--target", type=float, default=0.2); a.add_argument("--window", type=int, default=512)
    a.add_argument("--reps", type=int, default=3)
    a.add_argument("--epochs", type=int, default=100000, help="the length of the job, for strategies whose decisions follow it")
    a.add_argument("--link", help="workers on machines of their own, with links of this rate: 100mbit")
    # peers' own
    a.add_argument("--variant", default=""); a.add_argument("--shares", type=int, nargs="*", default=[23, 23, 12, 6])
    a.add_argument("--ckpt-every", type=int, default=0)
    a.add_argument("--min-replicas", type=int, default=1); a.add_argument("--heartbeat-ms", type=int); a.add_argument("--join-ms", type=int)
    a.add_argument("--ft-timeout", type=float); a.add_argument("--ft-quorum-timeout", type=float); a.add_argument("--quorum-retries", type=int, default=0)
    a.add_argument("--target-batch", type=int, default=64); a.add_argument("--hm", type=json.loads, default={}); a.add_argument("--hm-load", type=int, default=0)
    o = a.parse_args()
    o.tag = o.tag or o.peer or "all"
    o.steps_of = {"100k": 105, "1m": 105, "11m": 35}
    if o.scenario in ("faults", "stalls", "restarts"):
        o.n = o.n or 400_000; o.shuffle = bool(o.shuffle); o.sec_per_sample = o.sec_per_sample or [0.002] * o.world
    else:
        o.n = o.n or 1797; o.shuffle = o.shuffle is None or bool(o.shuffle)
    if o.scenario == "uneven" and not o.quota: o.sec_per_sample = o.sec_per_sample or [0.002, 0.002, 0.004, 0.008]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(o.out, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1"); os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo"); os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo, torch.nn.parallel     # DDP imports these lazily: pay before forking
    if o.link: links.make(o.world, o.link)
    try:
        res = {"faults": faults, "stalls": stalls, "restarts": restarts, "uneven": uneven, "overhead": overhead}[o.scenario](o)
    finally:
        for run in RUNS: run.stop()
        if o.link: links.remove(o.world)
    save(o, res)


if __name__ == "__main__":
    main()
