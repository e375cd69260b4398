"""Paceline's own processes: `paceline coordinate`, and `paceline join` for each worker. Not Python: a helper translates the journal.

A worker is the program itself, in the place of the forked process, so that a kill hits it as it hits the others. The helper follows the
journal and writes a line `step` for each round that a worker has committed. The model is the built-in network whose size is nearest
to that of the other contestants; it is computed, where the others sleep.
"""
import glob, json, os, re, socket, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("PACELINE", os.path.join(HERE, "../../target/release/paceline"))
JOB = """strategy = "ssgd"
model = "{model}"
data = "digits"
batch = {batch}
learning_rate = {rate}
epochs = 100000
schedule = "constant"
optimizer = {{ rule = {{ kind = "sgd", momentum = 0.0 }} }}
"""


def services(run):
    o = run.o
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    with open(f"{run.dir}/job.toml", "w") as f:
        f.write(JOB.format(model=o.variant or "cnn", batch=o.batch, rate=o.lr))
    state = f"{run.dir}/state"
    command = [PROGRAM, "coordinate", "--job", f"{run.dir}/job.toml", "--workers", "1:8", "--listen", f"127.0.0.1:{port}",
               "--state", state, "--patience", str(o.ft_timeout or 5), "--json", "--no-report"]
    run.helper("coordinator", command)
    run.helper("translator", [sys.executable, os.path.abspath(__file__), run.dir])
    return {"address": f"127.0.0.1:{port}", "token": f"{state}/token", "cmd": command}


def worker(w):
    while not os.path.exists(w.extra["token"]): time.sleep(0.01)
    w.log("ready")
    w.f.flush()
    os.execv(PROGRAM, [PROGRAM, "join", w.extra["address"], "--token-file", w.extra["token"]])


def after(run):
    """What the coordinator says at the end: it was stopped by SIGTERM."""
    with open(f"{run.dir}/coordinator.log") as f:
        text = f.read()
    found = text[text.rindex("\n{"):] if "\n{" in text else "{}"
    result = json.JSONDecoder().raw_decode(found.strip())[0]
    return {key: result.get(key) for key in ("ledger", "samples", "samples_wasted", "started_over", "recovery")}


class Translator:
    def __init__(self, folder):
        self.folder, self.at, self.part = folder, 0, b""
        self.offset = float("inf")
        self.views, self.spans, self.files, self.taken = {}, {}, {}, set()

    def rank_of(self, who):
        """The rank and the process of a worker's id, from what the workers have printed."""
        for path in glob.glob(f"{self.folder}/w*.log"):
            with open(path) as f:
                if re.search(rf"joined as worker {who};", f.read()):
                    return int(re.match(r"w(\d+)\.", os.path.basename(path)).group(1))
        return None

    def write(self, who, event):
        if who not in self.files:
            rank = self.rank_of(who)
            if rank is None:
                return
            self.files[who] = rank, open(f"{self.folder}/w{rank}.{who}.steps.jsonl", "w", buffering=1)
        rank, file = self.files[who]
        file.write(json.dumps({"rank": rank, "pid": who, **event}) + "\n")

    def take(self, line):
        self.offset = min(self.offset, time.time() - line["at"])
        kind = line["record"]
        if kind == "view":
            self.views[line["number"]] = line["members"]
        elif kind == "applied":
            self.spans[line["round"]] = line
        elif kind == "committed":
            applied = self.spans.get(line["round"] - 1)
            if not applied:
                return
            # All samples of a result are counted with the first worker that commits it.
            first = line["round"] not in self.taken
            self.taken.add(line["round"])
            spans = applied["spans"] if first else []
            index = [position for begin, end in spans for position in range(begin, end)]
            n = sum(end - begin for begin, end in applied["spans"])
            members = self.views[applied["result"]["view"]]
            self.write(line["who"], {
                "t": line["at"] + self.offset, "ev": "step", "step": line["round"], "n": n // len(members), "idx": index, "epoch": 0,
                "loss": applied["loss_sum"] / max(n, 1), "ok": True, "part": True, "members": len(members), "slept": 0.0, "cpu": 0.0})

    def follow(self):
        while True:
            try:
                with open(f"{self.folder}/state/journal.jsonl", "rb") as f:
                    f.seek(self.at)
                    text = f.read()
            except FileNotFoundError:
                text = b""
            self.at += len(text)
            *lines, self.part = (self.part + text).split(b"\n")
            for line in lines:
                self.take(json.loads(line))
            time.sleep(0.005)


if __name__ == "__main__":
    Translator(sys.argv[1]).follow()
