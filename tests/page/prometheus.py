"""Prometheus scrapes the page of a real run; its linter and every query of the dashboard are checked.

prometheus.py PROGRAM FOLDER DASHBOARD, run by .ci/page.
"""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

LONG = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def wait(what, is_so):
    since = time.monotonic()
    while True:
        try:
            if found := is_so():
                return found
        except OSError:
            pass
        if time.monotonic() - since > LONG:
            raise SystemExit(f"waited in vain: {what}")
        time.sleep(0.2)


def queries(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def main(program, folder, dashboard):
    folder.mkdir(parents=True, exist_ok=True)
    page, port = free_port(), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: paceline\n    static_configs:\n"
        f"      - targets: ['127.0.0.1:{page}']\n"
    )
    arguments = ["train", "--processes", "3", "--respawn", "--strategy", "ssgd", "--epochs", "200000", "--page", str(page)]
    arguments += ["--checkpoints", str(folder / "saved"), "--checkpoint-rounds", "200", "--no-report"]
    log = open(folder / "log", "w")
    run = subprocess.Popen([program, *arguments], cwd=folder, stdout=log, stderr=log)
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=log,
        stderr=log,
    )
    try:
        check(page, port, json.loads(dashboard.read_text()), run)
    finally:
        for process in (prometheus, run):
            process.kill()
            process.wait()


def check(page, port, dashboard, run):
    metrics = f"http://127.0.0.1:{page}/metrics"
    # All that can be known is known: a score, a checkpoint, a loss of a worker.
    wait("an accuracy", lambda: "paceline_test_accuracy_ratio" in get(metrics))
    wait("a checkpoint", lambda: "paceline_checkpoint_timestamp_seconds" in get(metrics))
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    subprocess.run(["kill", "-9", children[0]], check=True)
    wait("a recovery", lambda: "paceline_recoveries_total 1" in get(metrics))
    linted = subprocess.run(["promtool", "check", "metrics"], input=get(metrics), text=True, capture_output=True)
    if linted.returncode or linted.stderr.strip() or linted.stdout.strip():
        raise SystemExit(f"promtool: {linted.stdout}{linted.stderr}")
    print("ok: promtool finds nothing to complain of")

    def ask(query):
        answer = get(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        return json.loads(answer)["data"]["result"]

    wait("Prometheus has scraped", lambda: ask('up{job="paceline"} == 1'))
    count = 0
    for title, query in queries(dashboard):
        query = re.sub(r"\$__rate_interval", "10s", query)
        wait(f"{title}: {query} returns data", lambda: ask(query))
        count += 1
    print(f"ok: all {count} queries of the dashboard return data")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
