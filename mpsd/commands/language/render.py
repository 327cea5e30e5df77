"""The vendor's texts.  Each ends with a newline or is empty."""

from collections.abc import Iterable

from mpsd.commands.language.grammar import LineRequest, TerminateClient
from mpsd.model.quantities import render_limit, render_percent

NO_SERVER = "Server not found\n"
INVALID_PRIORITY = "Invalid priority value - must be 0 or 1!\n"
_INSUFFICIENT = (
    "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who started it "
    "or by the root user.\n"
)


def lines(values: Iterable[object]) -> str:
    return "".join(f"{value}\n" for value in values)


def percent(thread_percent: float) -> str:
    return f"{render_percent(thread_percent)}\n"


def limit(limit_bytes: int | None) -> str:
    """Render a limit; empty if it is unset."""
    return f"{render_limit(limit_bytes)}\n" if limit_bytes else ""


def unknown_command(name: str) -> str:
    return f'Unknown command "{name}"\n'


def server_not_found(request: LineRequest) -> str:
    return f"Server {request.server_pid} not found\n"


def server_not_found_twice(request: LineRequest) -> str:
    """Return the text twice: `ps` looks twice."""
    return 2 * server_not_found(request) + "\n"


def server_not_found_and_failed(request: LineRequest) -> str:
    """Return the text with a final number, as `terminate_client` has; 1 is CUDA_ERROR_INVALID_VALUE."""
    return f"Server {request.server_pid} not found\nServer {request.server_pid} not found!\n1\n"


def invalid_process(request: TerminateClient) -> str:
    return f"Invalid process {request.client_pid}!\n1\n"


def insufficient_privilege(uid: int) -> str:
    return _INSUFFICIENT.format(uid=uid)


def insufficient_privilege_and_failed(uid: int) -> str:
    """Return the text with a final number, as `terminate_client` has; 800 is CUDA_ERROR_NOT_PERMITTED."""
    return insufficient_privilege(uid) + "800\n"


def may_not_quit(uid: int) -> str:
    return "Not enough privilege to execute quit command\n"
