"""Start a keeper, and connect to a running one."""

import errno
import os
import socket
from pathlib import Path

import structlog

from mpsd.errors import KeeperFailed
from mpsd.host import processes
from mpsd.host.child import Child
from mpsd.host.inspector import Inspector
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.host.process_search import search
from mpsd.host.sock_diag import listening_sockets
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_NOT_FOUND = "a keeper whose socket was removed may not be found"
_LISTENER = 3  # its number in the keeper
_LISTENER_LINK = f"fd/{_LISTENER}"  # proc(5)


def start_keeper(inspector: Inspector, program: Path, path: Path, most: int) -> Child:
    """Start a keeper that listens at `path` when this returns, and outlives mpsd.  Raises KeeperFailed."""
    environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    with _new_socket() as listener:
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            os.chmod(path, 0o600)
            listener.listen(8)
        except OSError as exc:
            raise KeeperFailed(f"the keeper's socket {path} cannot be made: {exc.strerror}") from None
        command = [str(program), "--fd", str(_LISTENER), "--max", str(most)]
        try:
            with open(os.devnull, "r+b", buffering=0) as null:
                descriptors = [null.fileno()] * _LISTENER + [listener.fileno()]
                return inspector.start_program(command, environ, descriptors)
        except OSError as exc:
            raise KeeperFailed(f"the keeper {program} cannot be started: {exc.strerror}") from None


def connect_keeper(path: Path, seconds: float) -> socket.socket | None:
    """Return a connection without a greeting; None if no process listens: a stopped keeper still does, a dead one does not.

    Raises KeeperFailed if a process listens and cannot be reached within `seconds`.
    """
    end = _new_socket()
    end.settimeout(seconds)
    try:
        end.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        end.close()
        return None
    except OSError as exc:
        end.close()
        raise KeeperFailed(f"the keeper at {path} cannot be reached: {exc}") from None
    return end


def _new_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as exc:  # no descriptor, or no memory, is free now
        raise KeeperFailed(f"no socket for a keeper can be made: {exc.strerror}") from None


def find_unreachable(program: Path, path: Path) -> dict[str, ProcessId]:
    """Return the keepers of removed sockets, by the names of the sockets: the name of `path`, or one that begins so."""
    if not (names := _removed_sockets(path)):
        return {}

    def look(process: ProcessId, reader: ProcessReader) -> tuple[str, ProcessId] | None:
        name = names.get(reader.linked_file(process.pid, _LISTENER_LINK).path)  # not a client's connection, which it holds too
        if name is None:
            return None
        uid = processes.sole_uid(process.pid)  # last: a status takes 20 ms with 65,536 groups
        if uid is None:
            raise Unanswered(errno.EBUSY, f"the uids of pid {process.pid} are not known")
        return (name, process) if uid == os.geteuid() else None

    found, missing = search(lambda name: name == program.name, look)
    if missing:
        log.warning("keeper.not_searched", why=missing, effect=_NOT_FOUND)
    return dict(found)


def _removed_sockets(path: Path) -> dict[str, str]:
    """Return the names of mpsd's listening sockets that no path leads to, by the links of their descriptors."""
    try:
        listening = listening_sockets(os.geteuid())
    except OSError as exc:  # a kernel without CONFIG_UNIX_DIAG
        log.warning("keeper.not_searched", why=str(exc), effect=_NOT_FOUND)
        return {}
    places = {inode: Path(name) for inode, name in listening.items() if not name.startswith("\0")}
    return {
        f"socket:[{inode}]": place.name
        for inode, place in places.items()
        if place.parent == path.parent and place.name.startswith(path.name) and not os.path.lexists(place)
    }
