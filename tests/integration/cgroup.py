"""A cgroup of version 2 for one test; without cgroups of version 2 the test is skipped, with the reason."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsd.host.cgroups import unified_hierarchy
from tests.integration.client import Client
from tests.integration.process import wait_for


@contextmanager
def open_cgroup() -> Iterator[Path]:
    """Make a cgroup below the hierarchy's root, and kill all its processes at the end."""
    mount = unified_hierarchy()
    if mount is None or os.geteuid() != 0:
        pytest.skip("no cgroup v2 is mounted here, or not root")
    directory = mount / f"mpsd-test-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as exc:
        pytest.skip(f"cgroup v2 cannot be written here: {exc}")
    try:
        if not (directory / "cgroup.freeze").exists():
            pytest.skip("this kernel's cgroup v2 has no freezer")
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """The innermost first."""
    for inner in sorted((path for path in directory.iterdir() if path.is_dir()), reverse=True):
        _remove(inner)
    members = directory / "cgroup.procs"
    (directory / "cgroup.freeze").write_text("0")
    for pid in members.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    events = directory / "cgroup.events"  # a process that ends leaves cgroup.procs sooner
    wait_for("an empty cgroup", lambda: "populated 0" in events.read_text())
    directory.rmdir()


def freeze(cgroup: Path, *clients: Client) -> None:
    """Move the clients into the cgroup, and return when it is frozen."""
    for client in clients:
        (cgroup / "cgroup.procs").write_text(str(client.pid))
    (cgroup / "cgroup.freeze").write_text("1")
    wait_for("a frozen cgroup", lambda: "frozen 1" in (cgroup / "cgroup.events").read_text())
