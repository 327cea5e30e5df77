"""Commands about the limits of one server, where each client has limits of its own."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpsd.commands.pool_board import DaemonBoard
from mpsd.domains.domain import Domain
from mpsd.domains.rules.vendor_limits import GIB, MIB, ClientLimits
from mpsd.domains.store import SqliteStore
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.errors import UnusablePath
from mpsd.model.domain import Defaults, ServerView
from tests.inspecting import INSPECTOR

SERVER, STARTED_LATER = 770, 771
BASELINE = ClientLimits(60.0, (1535 * MIB,), 1)


class GuardedDomain:
    """A domain whose guard is on, and the board over it; notes what reaches the vendor's daemon."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), home)
        monkeypatch.setattr(control, "commands", self._commands)
        self.domain = Domain("d1", 1, ("GPU-a",), control, 48)
        self.domain.servers = {pid: ServerView(pid, 0, "ACTIVE", (), "d1") for pid in (SERVER, STARTED_LATER)}
        self.guard = self.domain.guard
        self.guard.is_on, self.guard.baselines = True, {SERVER: BASELINE}
        self.store = SqliteStore(home / "state.sqlite")
        self.sent: list[str] = []
        pool = SimpleNamespace(
            domain_of_server=lambda pid: self.domain, defaults=Defaults(90.0, {"GPU-a": 1535 * MIB}), store=self.store
        )
        self.board = DaemonBoard(pool, None)  # type: ignore[arg-type]

    async def _commands(self, lines: Sequence[str], *more: object) -> str:
        self.sent.extend(lines)
        return ""


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuardedDomain:
    return GuardedDomain(tmp_path, monkeypatch)


@pytest.mark.parametrize(("server", "percent"), [(SERVER, "60.0\n"), (STARTED_LATER, "90.0\n")])
async def test_reading_a_servers_limits_neither_opens_it_nor_changes_them(
    guarded: GuardedDomain, server: int, percent: str
) -> None:
    """Anyone may read them: the server was open for it, and its limit of 1535 MiB became 1 GiB."""
    window = guarded.guard._gate.window
    assert await guarded.board.forward(server, f"get_active_thread_percentage {server}") == percent
    assert await guarded.board.forward(server, f"get_device_pinned_mem_limit {server} 0") == "1G\n"
    assert (guarded.sent, guarded.guard._gate.window) == ([], window)
    assert guarded.guard.baselines == {SERVER: BASELINE}


async def test_setting_a_servers_limit_changes_that_one_alone(guarded: GuardedDomain) -> None:
    board = guarded.board
    assert await board.forward(SERVER, f"set_active_thread_percentage {SERVER} 33.35") == "33.4\n"
    assert guarded.guard.baselines[SERVER] == ClientLimits(33.35, (1535 * MIB,), 1)
    assert await board.forward(SERVER, f"set_device_pinned_mem_limit {SERVER} 0 2049M") == ""
    assert guarded.guard.baselines[SERVER] == ClientLimits(33.35, (2 * GIB + MIB,), 1)
    assert guarded.sent == []
    assert guarded.store.baselines("d1") == guarded.guard.baselines


async def test_the_defaults_do_not_replace_what_was_set_since(guarded: GuardedDomain) -> None:
    await guarded.board.forward(STARTED_LATER, f"set_active_thread_percentage {STARTED_LATER} 90")
    assert guarded.guard.baselines[STARTED_LATER] == ClientLimits(90.0, (1535 * MIB,))


async def test_what_cannot_be_stored_is_not_set(guarded: GuardedDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnusablePath("the disk is full")

    monkeypatch.setattr(guarded.store, "save_baselines", refuse)
    with pytest.raises(UnusablePath):
        await guarded.board.forward(SERVER, f"set_active_thread_percentage {SERVER} 50")
    assert guarded.guard.baselines == {SERVER: BASELINE}


async def test_where_no_client_has_limits_the_daemon_answers(guarded: GuardedDomain) -> None:
    guarded.guard.is_on = False
    await guarded.board.forward(SERVER, f"get_active_thread_percentage {SERVER}")
    assert guarded.sent == [f"get_active_thread_percentage {SERVER}"]
