"""The record of the clients of vendor daemons that lost their directories."""

from pathlib import Path

import pytest

from mpsd.domains.orphaned_daemons import _read
from mpsd.model.process import ProcessId


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("7:1 8:2 9:3\n", {ProcessId(7, 1): {ProcessId(8, 2), ProcessId(9, 3)}}),
        ("7:1\n", {ProcessId(7, 1): set()}),
        ("7:1 8:2\n\n", {}),
        ("7:1:3\n", {}),
        ("7:x\n", {}),
        ("\xff\n", {}),
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, text: str, clients: dict[ProcessId, set[ProcessId]]) -> None:
    """An empty line kept mpsd from starting."""
    (tmp_path / "record").write_text(text, encoding="latin-1")
    assert _read(tmp_path / "record") == clients
