"""How many connections and clients mpsd takes on with the descriptors that it may open.

What is over the budget waits in the kernel's queue, if it is a connection.  A client is refused: one that waits would keep a
connection that those need who are let in.  So `quit` and operators always have descriptors.  Prose:
docs/operating.md, "Open files".
"""

from dataclasses import dataclass

BESIDE = 160  # measured: 63 of an idle mpsd, 6 of each of 8 domains; and some sessions and connections of mpsd.sock
OF_A_CONNECTION = 3  # its socket, its process, its domain
OF_A_CLIENT = 7  # measured: its process twice, its UVM descriptors
LEAST = 224  # 10 connections and 4 clients


@dataclass(frozen=True, slots=True)
class Budget:
    connections: int
    clients: int
    is_short: bool = False  # as many clients as were configured would take more


def budget(descriptors: int, wanted: int) -> Budget:
    """For a process that may open so many descriptors, and as many connections and clients as were configured.

    Connections get half of what is left beside mpsd's own: most of them end after milliseconds.
    """
    left = max(0, descriptors - BESIDE)
    connections = min(wanted, left // 2 // OF_A_CONNECTION)
    clients = (left - connections * OF_A_CONNECTION) // OF_A_CLIENT
    return Budget(connections, min(wanted, clients), clients < wanted)


def refusal(descriptors: int) -> str:
    """Why mpsd does not start with so few; empty if it does."""
    if descriptors >= LEAST:
        return ""
    return f"mpsd may open {descriptors} files and needs {LEAST} at least: raise LimitNOFILE= (systemd), or `ulimit -n`"
