"""Start a keeper, and connect to a running one."""

import os
import socket
import subprocess
from pathlib import Path

from mpsd.errors import KeeperFailed


def start_keeper(program: Path, path: Path, most: int) -> subprocess.Popen[bytes]:
    """Start a keeper that listens at `path` when this returns, and outlives mpsd.  Raises KeeperFailed."""
    environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            os.chmod(path, 0o600)
            listener.listen(8)
        except OSError as exc:
            raise KeeperFailed(f"the keeper's socket {path} cannot be made: {exc.strerror}") from None
        number = listener.fileno()
        try:
            return subprocess.Popen(
                [str(program), "--fd", str(number), "--max", str(most)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environ,
                start_new_session=True,  # a signal to mpsd's session must not end it
            )
        except OSError as exc:
            raise KeeperFailed(f"the keeper {program} cannot be started: {exc.strerror}") from None


def connect_keeper(path: Path, seconds: float) -> socket.socket | None:
    """Return a connection without a greeting; None if no process listens: a stopped keeper still does, a dead one does not.

    Raises KeeperFailed if a process listens and cannot be reached within `seconds`.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
