"""Processes that are forked from a worker, such as those of a data loader: they close the worker's connections.

If they kept them, peers of a worker that is killed would not notice before its data loader's processes have ended, too.
"""

import os
import socket
import stat
from collections.abc import Callable

__all__ = ["watch"]

_sources: list[Callable[[], list[tuple[str, int]]]] = []
_known: set[tuple[str, int]] = set()
_is_registered = False


def watch(addresses: Callable[[], list[tuple[str, int]]]) -> None:
    """Closes connections from and to these addresses in processes that are forked from now on."""
    global _is_registered
    _sources.append(addresses)
    if not _is_registered:
        _is_registered = True
        os.register_at_fork(before=_remember, after_in_child=_close)


def _remember() -> None:
    # Before the fork: in the child, a lock that another thread held would stay locked.
    for source in _sources:
        _known.update(source())


def _close() -> None:
    _sources.clear()
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(folder):
        try:
            number = int(name)
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                _close_if_ours(number)
        except (OSError, ValueError):
            continue


def _close_if_ours(number: int) -> None:
    found = socket.socket(fileno=number)
    is_ours = False
    try:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            ports = {port for _, port in _known}
            own = found.getsockname()[:2]
            try:
                peer = found.getpeername()[:2]
            except OSError:
                peer = None
            # Links of peers come to the port at which this worker listens; its own go to theirs.
            is_ours = tuple(own) in _known or (peer is not None and tuple(peer) in _known)
            is_ours = is_ours or (own[1] in ports and _is_unspecified_known(own[1]))
        elif found.family == socket.AF_UNIX:
            # Where peers of this machine pass their memory on.
            name = found.getsockname()
            is_ours = isinstance(name, bytes) and name.startswith(b"\0paceline-")
    finally:
        found.detach()
    if is_ours:
        os.close(number)


def _is_unspecified_known(port: int) -> bool:
    return ("0.0.0.0", port) in _known or ("::", port) in _known
