"""Machines of their own for the workers: network namespaces at a switch, each behind a link of a given rate (tc tbf). Needs root."""
import ctypes, os, subprocess

PREFIX = f"peers{os.getpid() % 10000}"
HUB = "10.77.0.254"


def name(rank): return f"{PREFIX}w{rank}"


def switch(): return f"{PREFIX}s"


def address(rank): return f"10.77.0.{rank + 1}"


def run(*command): subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make(world, rate):
    """A bridge in a namespace of its own, where helpers run, and a namespace for each worker."""
    ip = lambda text: run("ip", *text.split())
    shape = lambda space, port: run("tc", "-n", space, "qdisc", "add", "dev", port, "root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
    ip(f"netns add {switch()}")
    ip(f"-n {switch()} link add hub type bridge")
    ip(f"-n {switch()} addr add {HUB}/24 dev hub")
    for port in ("hub", "lo"): ip(f"-n {switch()} link set {port} up")
    for rank in range(world):
        ip(f"netns add {name(rank)}")
        ip(f"link add name eth0 netns {name(rank)} type veth peer port{rank} netns {switch()}")
        ip(f"-n {switch()} link set port{rank} master hub up")
        ip(f"-n {name(rank)} addr add {address(rank)}/24 dev eth0")
        for port in ("eth0", "lo"): ip(f"-n {name(rank)} link set {port} up")
        shape(name(rank), "eth0")           # what the worker sends
        shape(switch(), f"port{rank}")      # what it receives


def remove(world):
    for space in [name(rank) for rank in range(world)] + [switch()]:
        subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)


def enter(space):
    """Moves this process into a namespace."""
    with open(f"/run/netns/{space}") as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")


def within(space, command): return ["ip", "netns", "exec", space, *command]
