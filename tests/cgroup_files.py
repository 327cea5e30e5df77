"""An inspector that finds cgroups of version 2 in directories of a test, where a file that never answers is a pipe."""

import os
import subprocess
from pathlib import Path

from mpsd.host.inspector import Inspector

INSPECTOR_SOURCE = Path(__file__).parents[1] / "native/inspector"


class CgroupFiles:
    """root: in place of where version 2 is mounted.  Processes are in no cgroup until they are put into one."""

    def __init__(self, place: Path) -> None:
        self.root, self._proc, self._program = place / "cgroups", place / "proc", place / "inspector"
        self.root.mkdir()
        define = f"CPPFLAGS_EXTRA=-DPROC='\"{self._proc}\"'"
        subprocess.run(["make", "-C", INSPECTOR_SOURCE, f"OUT={self._program}", define], check=True, capture_output=True)

    def inspector(self, deadline_seconds: float) -> Inspector:
        """Return an inspector that is not started.  deadline_seconds: of its reads."""
        return Inspector(self._program, deadline_seconds)

    def put(self, pid: int, path: str) -> None:
        """Show the process in the cgroup of this path, which begins with a slash."""
        directory = self._proc / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup").write_text(f"1:cpu:/other\n0::{path}\n")

    def hold(self, pid: int) -> Path:
        """Let each look at the process's cgroup wait until the file that this returns is opened to be written, and closed."""
        directory = self._proc / str(pid)
        first = directory / "task" / str(pid)
        first.mkdir(parents=True, exist_ok=True)
        (first / "stat").write_text("stat\n")
        os.mkfifo(directory / "cgroup")
        return directory / "cgroup"

    def make(self, path: str, freeze: str | None) -> Path:
        """Make a cgroup; freeze: what cgroup.freeze contains, None: it never answers, "": there is none."""
        directory = self.root.joinpath(path.lstrip("/"))
        directory.mkdir(parents=True, exist_ok=True)
        if freeze is None:
            os.mkfifo(directory / "cgroup.freeze")
        elif freeze:
            (directory / "cgroup.freeze").write_text(freeze)
        return directory
