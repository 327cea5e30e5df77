"""A command to a vendor daemon waits for those before it; what it is about may have ended by its turn."""

from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.terminate_client import terminate_client
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.errors import NoSuchClient
from mpsd.model.domain import DomainState
from tests.inspecting import INSPECTOR


async def test_a_command_is_checked_in_its_turn_and_not_sent_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), tmp_path)
    domain = Domain("d1", 1, ("GPU-a",), control, 48, state=DomainState.READY)
    sent: list[bytes] = []
    has_answer, ended = trio.Event(), False

    async def run(words: list[str], text: bytes, *facts: object) -> tuple[int, bytes]:
        sent.append(text)
        await has_answer.wait()
        return 0, b"0\n"

    def check() -> None:
        if ended:
            raise NoSuchClient("client 586 has ended")

    async def terminate() -> None:
        with pytest.raises(NoSuchClient):
            await terminate_client(domain, 512, 586, check)

    monkeypatch.setattr(control, "_run", run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.command, "get_default_active_thread_percentage")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(terminate)
        await trio.testing.wait_all_tasks_blocked()
        ended = True
        has_answer.set()
    assert sent == [b"get_default_active_thread_percentage\n"]
