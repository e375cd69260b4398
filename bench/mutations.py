#!/usr/bin/env python3
"""Breaks rules of the engine on purpose, one at a time, and shows which test finds it.

    python3 bench/mutations.py [seeds] [name ...]     # prints the table of docs/testing.md; 20,000 seeds by default

All mutations are compiled into a copy of the last commit, in a temporary directory; MUTATION=name turns one on. So there is
one build, and the repository is not changed. A test that runs for longer than LIMIT seconds has found the mutation, too:
the job never ends.
"""
import os
import re
import subprocess
import sys
import tempfile

LIMIT = 600
RUNTIME = "crates/runtime/src/"
ON = 'paceline_learn::mutated("{}")'

# name, what is broken, [(file, code, code with ON in it)]
MUTATIONS = [
    ("H1", "a newcomer that finds nobody to adopt from goes on", [
        (RUNTIME + "train/asynchronous.rs", "let Some(adopted) = adopted else",
         "let Some(adopted) = adopted.or(ON.then_some(worker.id)) else")]),
    ("H2", "the coordinator believes that everybody is silent", [
        (RUNTIME + "coordination/mod.rs", "let is_likely = 2 * silent.len()",
         "let is_likely = ON || 2 * silent.len()")]),
    ("H9", "a word that is sent again counts again", [
        (RUNTIME + "coordination/state.rs", "number == 0 || number == received + 1",
         "ON || number == 0 || number == received + 1")]),
    ("H11a", "workers are not told what a restored center lacks", [
        (RUNTIME + "coordination/state.rs", "in self.leases.restored(done.clone()) {",
         "in self.leases.restored(done.clone()) { if ON { continue; }")]),
    ("H11b", "samples that a restored center lacks are not returned", [
        (RUNTIME + "worker/samples.rs", "missing.subtract(&self.in_hand);",
         "missing.subtract(&self.in_hand); if ON { missing = Spans::new(); }")]),
    ("H11c", "a worker returns samples although it has their gradients in hand", [
        (RUNTIME + "worker/samples.rs", "missing.subtract(&self.in_hand);",
         "if !ON { missing.subtract(&self.in_hand); }")]),
    ("H11d", "a worker returns samples that it has just pushed to the restored center", [
        (RUNTIME + "worker/samples.rs", "if *reign >= since {", "if *reign >= since && !ON {")]),
    ("H12", "copies of the center are ordered by version alone", [
        (RUNTIME + "server.rs", "(copy.reign, copy.version)",
         "(if ON { 0 } else { copy.reign }, copy.version)")]),
    ("center", "a restored center begins with the initial parameters", [
        (RUNTIME + "server.rs", "self.center = center.params;",
         "if !ON { self.center = center.params; }")]),
    ("rule 4", "a result is read through the view that a member stands in", [
        (RUNTIME + "worker/exchanges.rs", "agreed.view = sum.view.clone();",
         "agreed.view = if ON { self.view.clone() } else { sum.view.clone() };")]),
    ("rule 5", "a view that a member has closed may still complete", [
        ("crates/sim/src/exchanges.rs", "if member.withdrawn {\n            return None;",
         "if member.withdrawn && !ON {\n            return None;"),
        (RUNTIME + "executor/inbox.rs", "std::mem::take(&mut self.exchanges) {",
         "std::mem::take(&mut self.exchanges) { if ON { continue; }"),
        (RUNTIME + "worker/exchanges.rs", "let Progress::Underway { view, .. } = &pending.progress\n        {",
         "let Progress::Underway { view, ticket } = &pending.progress\n        { if ON { self.late = Some(*ticket); }"),
        (RUNTIME + "worker/exchanges.rs", "    pub(super) fn collect(&mut self) {",
         "    pub(super) fn collect(&mut self) {\n"
         "        if ON && let Some(pending) = &mut self.state.private.pending\n"
         "            && let Some(sum) = self.late.and_then(|late| self.port.look(|inbox| inbox.sum(late)))\n"
         "        { pending.progress = Progress::Finished(sum); }"),
        (RUNTIME + "worker/mod.rs", "pub struct Worker {", "pub struct Worker { late: Option<crate::ids::Ticket>,"),
        (RUNTIME + "worker/mod.rs", "        Worker {\n", "        Worker {\n late: None,\n")]),
    ("rule 6", "a member that is given a missed result keeps its input and enters it again", [
        (RUNTIME + "worker/settling.rs", "(pending.progress, pending.input) = (Progress::Finished(sum), None);",
         "if ON { pending.number = most + 1; } else "
         "{ (pending.progress, pending.input) = (Progress::Finished(sum), None); }")]),
    ("rule 9", "shares follow the view that a member has heard of", [
        (RUNTIME + "worker/settling.rs", "if !view.members.iter().any(|member| self.state",
         "if ON || !view.members.iter().any(|member| self.state")]),
]

SWITCH = """
/// Whether a rule is broken on purpose.
pub fn mutated(name: &str) -> bool {
    static ON: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var("MUTATION").unwrap_or_default()) == name
}
"""


def mutate(root):
    with open(f"{root}/crates/learn/src/lib.rs", "a") as library:
        library.write(SWITCH)
    for name, _, changes in MUTATIONS:
        for path, code, broken in changes:
            with open(f"{root}/{path}") as file:
                text = file.read()
            if code not in text:
                sys.exit(f"{name}: {path} no longer contains {code!r}")
            with open(f"{root}/{path}", "w") as file:
                file.write(text.replace(code, broken.replace("ON", ON.format(name)), 1))


def build(root):
    """Returns the program of each test."""
    tests = ["worlds", "holes", "swarm"]
    command = ["cargo", "test", "--release", "--no-default-features", "--no-run"] + [part for test in tests for part in ("--test", test)]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True)
    programs = dict(re.findall(r"Executable tests/(\w+)\.rs \((.*)\)", built.stderr))
    return programs if len(programs) == len(tests) else sys.exit(built.stderr)


def finding(root, program, environment):
    """What a test says about a mutation; nothing if it passes."""
    target = os.environ.get("CARGO_TARGET_DIR", f"{root}/target")
    path = program if program.startswith("/") else os.path.join(os.path.dirname(target), program)
    try:
        run = subprocess.run([path], cwd=root, env={**os.environ, **environment},
                             capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "never ends"
    if run.returncode == 0:
        return ""
    seeds = re.search(r"(\d+) of \d+ seeds failed: \[(\d+)", run.stdout + run.stderr)
    return f"{seeds[1]} seeds, first {seeds[2]}" if seeds else "found"


def main():
    seeds = sys.argv[1] if len(sys.argv) > 1 else "20000"
    repository = subprocess.check_output(["git", "rev-parse", "--show-toplevel"], text=True).strip()
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(f"git -C '{repository}' archive HEAD | tar -x -C '{root}'", shell=True, check=True)
        mutate(root)
        programs = build(root)
        print(f"| broken on purpose | worlds | holes | swarm, {int(seeds):,} seeds |\n|---|---|---|---|", flush=True)
        for name, what, _ in MUTATIONS:
            if sys.argv[2:] and name not in sys.argv[2:]:
                continue
            switches = {"worlds": {}, "holes": {}, "swarm": {"SWARM_SEEDS": seeds}}
            found = [finding(root, programs[test], {"MUTATION": name, **more}) for test, more in switches.items()]
            print(f"| {name}: {what} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
