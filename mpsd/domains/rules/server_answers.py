"""Questions about servers to a vendor daemon, and its answers."""

from itertools import takewhile

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
    """Parse the pids of an answer; other words are left out."""
    return [int(word) for word in text.split() if word.isdecimal() and len(word) <= 10]
