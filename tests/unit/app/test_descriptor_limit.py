"""How many descriptors mpsd may open, and that opening one never waits."""

import os
import resource
from pathlib import Path

from mpsd.app.descriptor_limit import raise_descriptor_limit


def table_size() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("FDSize:")]
    return int(line.split()[1])


def in_a_child(wanted: int) -> int:
    """Return the size of the kernel's descriptor table in a child afterwards: a table that threads share grows slowly."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            raise_descriptor_limit(wanted)
            os.write(write, str(table_size()).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as said:
        return int(said.read())


def test_the_table_of_descriptors_is_as_large_as_it_will_ever_be() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = min(hard, table_size() * 4)
    assert table_size() < wanted <= in_a_child(wanted)


def test_more_than_is_allowed_is_as_much_as_is() -> None:
    """The kernel's bound for everybody: not root's either."""
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    assert in_a_child(most + 1) >= min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
