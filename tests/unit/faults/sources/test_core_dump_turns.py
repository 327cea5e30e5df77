"""Names of files that their writers have closed, of which a user may cause any number."""

import pytest

from mpsd.faults.sources import core_dump_directory
from tests.unit.faults.sources.test_core_dump_directory import CULPRIT, INNOCENT, Cores, cores, of_another

__all__ = ["cores", "of_another"]  # fixtures
MANY = 5_000


@pytest.mark.parametrize("name", ["zzz", "core.0", "core.4711"])
def test_a_closed_file_that_is_no_dump_waits_for_no_other_look(cores: Cores, name: str) -> None:
    """mpsd looked at the directory again without a pause, for as long as one file with another name was there."""
    cores.write(name, b"no dump")
    assert cores.look(name) == []
    assert not cores.directory.has_more
    cores.write("core.1", INNOCENT)
    assert [dump.pid for dump in cores.look("core.1", name)] == [1]
    assert not cores.directory.has_more


@pytest.mark.root
def test_no_number_of_closed_files_pushes_out_the_name_of_another_users(cores: Cores, of_another, monkeypatch) -> None:
    """Of the names mpsd took 256 in the order of a set; one that it dropped waited until it was quiet, and might be deleted."""
    names = [f"core.{number}" for number in range(1, MANY + 1)]
    for name in names:
        cores.write(name, b"")
    of_another("core.9999", CULPRIT)
    monkeypatch.setattr(core_dump_directory, "_LOOK_SECONDS", -1.0)  # no time to read one
    cores.look(*names, "core.9999")
    assert len(cores.directory._closed) == core_dump_directory._MOST_FILES
    assert cores.directory.has_more
    monkeypatch.undo()
    assert 9999 in [dump.pid for dump in cores.look()]
