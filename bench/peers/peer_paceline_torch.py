"""The torch loop of the other contestants on Paceline: `paceline coordinate`, and a worker in each forked process. --variant: the strategy.

Nothing is set by hand: each worker gets the same batch, and the strategy finds out how fast it is.
"""
import json, os, socket, sys, time
import torch
import links, task

OPEN = ("abs",)     # their batches come in pieces


def services(run):
    o = run.o
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    state, host = f"{run.dir}/state", links.HUB if o.link else "127.0.0.1"
    command = [sys.executable, "-m", "paceline", "coordinate", "--model", "own", "--data", "own", "--strategy", o.variant or "ssgd",
               "--batch", str(o.batch), "--epochs", str(o.epochs), "--seed", str(o.seed), "--workers", "1:" if o.scenario == "faults" else str(o.world),
               "--listen", f"{host}:{port}", "--state", state, "--patience", str(o.ft_timeout or 5), "--json", "--no-report"]
    run.helper("coordinator", links.within(links.switch(), command) if o.link else command)
    return {"address": f"{host}:{port}", "token": f"{state}/token", "cmd": command}


def worker(w):
    import paceline
    o = w.o
    while not os.path.exists(w.extra["token"]): time.sleep(0.01)
    os.environ.update(PACELINE_JOIN=w.extra["address"], PACELINE_TOKEN=open(w.extra["token"]).read().strip())
    joined = paceline.join()
    model = w.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=o.lr)
    loader = torch.utils.data.DataLoader(task.Indices(o.n), batch_size=o.batch, shuffle=o.shuffle)
    model, optimizer, loader = joined.prepare(model, optimizer, loader)
    w.ready()

    def finished(idx, loss, epoch):
        status = joined.status()
        w.step(status.updates, idx, loss, epoch, members=len(status.members))
        return w.steps == o.max_steps

    for epoch in joined.epochs():
        if o.variant in OPEN:
            for step in loader.steps():
                seen, last = [], None
                for idx in step:
                    last = w.batch_loss(model, idx.tolist())
                    last.backward()
                    seen += idx.tolist()
                optimizer.step(); optimizer.zero_grad()
                if seen and finished(seen, last, epoch): return w.log("end")
        else:
            for idx in loader:
                optimizer.zero_grad()
                loss = w.batch_loss(model, idx.tolist())
                loss.backward()
                optimizer.step()
                if finished(idx.tolist(), loss, epoch): return w.log("end")
    w.log("end")


def after(run):
    """What the coordinator says at the end: it was stopped by SIGTERM."""
    with open(f"{run.dir}/coordinator.log") as f:
        text = f.read()
    found = text[text.rindex("\n{"):] if "\n{" in text else "{}"
    try: result = json.JSONDecoder().raw_decode(found.strip())[0]
    except json.JSONDecodeError: result = {}
    return {key: result.get(key) for key in ("ledger", "samples", "samples_wasted", "started_over")}
