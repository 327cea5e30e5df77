"""Check the state directory under a running mpsd: its identity, its free space, and that its databases are intact."""

import errno
import os
from pathlib import Path

from mpsd.health.rules.problems import Storage
from mpsd.host.file_identity import FileId, identity_of


class StateDirectory:
    """Guards that later checks compare with what mpsd opened at its start.  Build it once the databases are open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = identity_of(os.stat(path))
        self._databases = {each.name: identity_of(each.stat()) for each in sorted(path.glob("*.db"))}

    def look(self) -> Storage:
        """Check the directory; call it in a thread: a disk that hangs blocks it."""
        try:
            found = os.stat(self._path)
            if identity_of(found) != self._identity:
                return Storage(str(self._path), "was replaced under the running mpsd")
            room = os.statvfs(self._path)
        except FileNotFoundError:
            return Storage(str(self._path), "was removed under the running mpsd")
        except OSError as exc:
            return Storage(str(self._path), f"cannot be read ({exc.strerror})")
        free_files = room.f_favail if room.f_files else None  # btrfs and some others create inodes as needed
        is_read_only = bool(room.f_flag & os.ST_RDONLY) or _refuses_changes(self._path, found)
        damaged = tuple(name for name, known in self._databases.items() if self._is_damaged(name, known))
        return Storage(str(self._path), "", is_read_only, room.f_bavail * room.f_frsize, free_files, damaged)

    def _is_damaged(self, name: str, known: FileId) -> bool:
        try:
            found = os.stat(self._path / name)
        except OSError:
            return True
        return identity_of(found) != known or not found.st_size


def _refuses_changes(path: Path, found: os.stat_result) -> bool:
    """Return whether the file system refuses to store the directory's own times again.

    ext4 after an error (errors=remount-ro) refuses all changes, and since Linux 6.15 statvfs does not show that.
    """
    try:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    except OSError as exc:
        return exc.errno == errno.EROFS
    return False
