"""Questions about servers to a vendor daemon, and its answers."""

from collections.abc import Callable, Mapping
from itertools import takewhile

from msgspec.structs import replace

from mpsd.model.domain import ServerView

LIST = "get_server_list"


def questions(server_pid: int | None) -> tuple[str, ...]:
    """Return the questions for the list of servers and about one server, if its pid is given."""
    return LIST, *(about(server_pid) if server_pid else ())


def about(server_pid: int) -> tuple[str, ...]:
    return f"get_server_status {server_pid}", f"get_client_list {server_pid}"


def split_list(answer: str) -> tuple[list[int], str]:
    """Return the listed servers, and the answers about one server: these begin with its state, which is no number."""
    lines = answer.splitlines(keepends=True)
    listed = list(takewhile(lambda line: line.strip().isdecimal(), lines))
    return parse_pids("".join(listed)), "".join(lines[len(listed) :])


def parse_server(answer: str) -> tuple[str, list[int]]:
    """Return the state of a server, and its clients."""
    status, _, clients = answer.partition("\n")
    return status.strip(), parse_pids(clients)


def parse_pids(text: str) -> list[int]:
    """Parse the pids of an answer, one a line; other lines are left out, as `Server 7 not found` of a server that ends."""
    return [int(line) for line in map(str.strip, text.splitlines()) if line.isdecimal() and len(line) <= 10]


def living(servers: Mapping[int, ServerView], find: Callable[[int], object]) -> dict[int, ServerView]:
    """Return the servers with the clients that still live; of a server that cannot be asked."""
    return {
        pid: replace(server, client_pids=tuple(each for each in server.client_pids if find(each)))
        for pid, server in servers.items()
        if find(pid)
    }
