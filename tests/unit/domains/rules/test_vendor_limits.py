"""The vendor's words for one client's limits, and what proves that they hold."""

import pytest

from mpsd.domains.rules import vendor_limits
from mpsd.domains.rules.vendor_limits import GIB, MIB, ClientLimits
from mpsd.model.lease import Grant

A, B = "GPU-a", "GPU-b"


def test_of_a_grant_by_the_domains_ordinals() -> None:
    grant = Grant("lease 1", sm_percent=25.0, memory_bytes={B: 3 * GIB + 5}, priority=1)
    assert vendor_limits.of_grant(grant, (A, B)) == ClientLimits(25.0, (0, 3 * GIB), 1)
    assert vendor_limits.of_grant(grant, (B,)) == ClientLimits(25.0, (3 * GIB,), 1)


def test_a_limit_below_a_mebibyte_does_not_become_none() -> None:
    assert vendor_limits.of_grant(Grant("", memory_bytes={A: 5}), (A,)).memory_bytes == (MIB,)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (ClientLimits(100, (0,)), ClientLimits(50, (GIB,)), ClientLimits(50, (GIB,))),
        (ClientLimits(30, (GIB,)), ClientLimits(50, (0,)), ClientLimits(30, (GIB,))),
        (ClientLimits(30, (2 * GIB,), 1), ClientLimits(50, (GIB,)), ClientLimits(30, (GIB,), 1)),
        (ClientLimits(100, (0, 0)), ClientLimits(100, (0, 0)), ClientLimits(100, (0, 0))),
    ],
)
def test_the_lower_of_each(one: ClientLimits, other: ClientLimits, both: ClientLimits) -> None:
    assert vendor_limits.tighter(one, other) == both == vendor_limits.tighter(other, one)


def test_what_is_said_and_what_proves_it() -> None:
    wanted = ClientLimits(24.25, (1536 * MIB, 0))
    assert vendor_limits.commands(7, wanted, 0) == (
        "set_active_thread_percentage 7 24.25",
        "set_device_pinned_mem_limit 7 0 1536M",
        "get_device_pinned_mem_limit 7 0",
        "set_device_pinned_mem_limit 7 1 0M",
        "get_device_pinned_mem_limit 7 1",
    )
    assert vendor_limits.proof(wanted) == "24.2\n1G\n"  # as C's printf rounds a tie
    assert vendor_limits.proof(ClientLimits(33.3499999999, ())) == "33.4\n", "the daemon was told 33.35"
    assert vendor_limits.commands(7, ClientLimits(100, (), 1), 0)[-1] == "set_default_client_priority 1"


@pytest.mark.parametrize(
    ("line", "after", "answer"),
    [
        ("get_active_thread_percentage 7", (33.35, (0, 1535 * MIB, MIB)), "33.4\n"),
        ("set_active_thread_percentage 7 0.04", (0.04, (0, 1535 * MIB, MIB)), "0.0\n"),
        ("get_device_pinned_mem_limit 7 0", (33.35, (0, 1535 * MIB, MIB)), ""),
        ("get_device_pinned_mem_limit 7 1", (33.35, (0, 1535 * MIB, MIB)), "1G\n"),
        ("get_device_pinned_mem_limit 7 2", (33.35, (0, 1535 * MIB, MIB)), "1M\n"),
        ("set_device_pinned_mem_limit 7 0 1025M", (33.35, (1025 * MIB, 1535 * MIB, MIB)), ""),
        ("set_device_pinned_mem_limit 7 2 0M", (33.35, (0, 1535 * MIB, 0)), ""),
    ],
)
def test_a_command_about_a_server_is_answered_as_by_the_vendor(
    line: str, after: tuple[float, tuple[int, ...]], answer: str
) -> None:
    """The vendor's texts: tests/contract/vendor_580.toml, and the simulator's for one server."""
    before = ClientLimits(33.35, (0, 1535 * MIB, MIB), 1)
    assert vendor_limits.carry_out(line, before) == (ClientLimits(*after, 1), answer)


def test_closed_and_unlimited() -> None:
    assert vendor_limits.closed((A, B), 1) == ClientLimits(0.1, (MIB, MIB), 1)
    assert vendor_limits.proof(vendor_limits.closed((A,))) == "0.1\n1M\n"
    assert vendor_limits.proof(vendor_limits.unlimited((A,))) == "100.0\n"


@pytest.mark.parametrize(("answer", "percent"), [("25.0\n", 25.0), ("", None), ("nan\n", None), ("0.0\n", None), ("x", None)])
def test_reading_a_percentage(answer: str, percent: float | None) -> None:
    assert vendor_limits.read_percent(answer) == percent


@pytest.mark.parametrize(("answer", "size"), [("2G\n", 2 * GIB), ("512M\n", 512 * MIB), ("", 0), ("Server 9 not found", None)])
def test_reading_a_memory_limit(answer: str, size: int | None) -> None:
    assert vendor_limits.read_memory(answer) == size


@pytest.mark.parametrize(
    ("variable", "is_good"),
    [
        (None, True), ("", True), ("0=1G", True), ("1=1G", False), ("GPU-a=1G", True), ("GPU-z=1G", False),
        ("0=1G,7=1G", False), ("99999999999999=1G", False), ("=1G", False), ("0=1G,", True),
        ("00=1G", False), ("\u0660=1G", False),  # int() reads both as 0
        (",".join(["0=1G"] * 256), True), (",".join(["0=1G"] * 257), False),  # 30,000 took 15 ms of the event loop
    ],
)  # fmt: skip
def test_a_clients_own_limit_must_not_name_a_gpu_that_it_cannot_see(variable: str | None, is_good: bool) -> None:
    assert (vendor_limits.overrides(variable, {A: 0}) == "") is is_good
