"""Build the vault, also while a user keeps processes unread."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpsd.app.wire_vault import join_vault
from mpsd.config.options import Config
from mpsd.fairness.uid_ranges import NO_RANGES
from mpsd.host import processes
from mpsd.host.own_process import own_id
from mpsd.host.process_reader import Unanswered
from mpsd.vault.store import VaultStore
from tests.inspecting import INSPECTOR


def test_a_start_needs_no_read_of_mpsds_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mpsd asked the reader for its own start time, and failed to start while a user held a process of mpsd's user."""

    def refuse(pid: int) -> bytes:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    ours = processes.process_id(os.getpid())
    monkeypatch.setattr(processes.reader, "stat", refuse)
    store, config = VaultStore(tmp_path / "vault.db", "this boot"), Config()
    claim = SimpleNamespace(state_directory=tmp_path)
    found = SimpleNamespace(config=config, vault_store=store, ranges=NO_RANGES, inspector=INSPECTOR, claim=claim)
    bus = SimpleNamespace(publish=print)
    rest = SimpleNamespace(has_ended=bool, wait_ended=bool)
    try:
        assert join_vault(found, list, None, rest, bus, bool)  # type: ignore[arg-type]
        assert store._read("SELECT pid, start_time FROM daemon") == [(os.getpid(), own_id().start_time)]
    finally:
        store.close()
    assert own_id() == ours
