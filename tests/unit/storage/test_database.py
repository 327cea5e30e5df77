"""mpsd's own SQLite files: what is left behind where one cannot be used."""

import os
import sqlite3
from pathlib import Path

import pytest

from mpsd.errors import UnusablePath
from mpsd.storage.database import open_database


def open_files(path: Path) -> list[str]:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(path))]


@pytest.mark.parametrize(
    ("version", "schema"),
    [pytest.param(7, "", id="another version"), pytest.param(0, "CREATE nonsense;", id="no room for its tables")],
)
def test_a_file_that_cannot_be_used_is_not_kept_open(version: int, schema: str, tmp_path: Path) -> None:
    """Also during the refusal, while its traceback keeps the function's variables alive."""
    path = tmp_path / "some.db"
    before = sqlite3.connect(path)
    before.execute(f"PRAGMA user_version={version}")
    before.close()
    with pytest.raises(UnusablePath) as refused:
        open_database(path, schema, 1, "nothing")
    assert refused.tb is not None
    assert open_files(path) == []
