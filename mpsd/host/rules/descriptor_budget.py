"""Compute how many connections and clients mpsd accepts with the descriptors that it may open.

A connection over the budget waits in the kernel's queue.  A client over the budget is refused: if it waited, it would keep a
connection that admitted clients need.  So `quit` and operators always have descriptors.
Prose: docs/operating.md, "Open files".
"""

from msgspec import Struct

BESIDE = 160  # measured: 63 of an idle mpsd, 6 of each of 8 domains; and some sessions and connections of mpsd.sock
OF_A_CONNECTION = 3  # its socket, its process, its domain or, of a held one, an epoll
OF_A_CLIENT = 7  # measured: its process twice, its UVM descriptors
LEAST = 224  # 10 connections and 4 clients
MOST_SPACES = 4  # UVM descriptors that mpsd holds of one client: CUDA opens two
_BEYOND = 64  # descriptors that one user's clients may take of mpsd beyond what so many clients usually do


class Budget(Struct, frozen=True):
    connections: int
    clients: int
    is_short: bool = False  # the configured number of clients would need more descriptors


def budget(descriptors: int, wanted: int) -> Budget:
    """Compute the budget from the process's limit of descriptors and the configured number of connections and clients.

    Connections get half of the descriptors that mpsd does not need itself: most of them end after milliseconds.
    """
    left = max(0, descriptors - BESIDE)
    connections = min(wanted, left // 2 // OF_A_CONNECTION)
    clients = (left - connections * OF_A_CONNECTION) // OF_A_CLIENT
    return Budget(connections, min(wanted, clients), clients < wanted)


def may_take(clients: int, held: int) -> bool:
    """Return whether mpsd takes another descriptor of a user who has so many clients, of which it holds so many.

    How many a process has open is its own affair: without a bound one user's clients would use up mpsd's descriptors.
    """
    return held < clients * OF_A_CLIENT + _BEYOND


def refusal(descriptors: int) -> str:
    """Return why mpsd does not start with so few descriptors; empty if it does."""
    if descriptors >= LEAST:
        return ""
    return f"mpsd may open {descriptors} files and needs {LEAST} at least: raise LimitNOFILE= (systemd), or `ulimit -n`"
