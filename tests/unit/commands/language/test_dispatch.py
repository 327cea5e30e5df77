"""Permissions, the texts of refusals, and the part of a command that reaches the domains."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mpsd import errors
from mpsd.commands.language.call import Answer
from mpsd.commands.language.command_table import COMMANDS, CommandPrivilege
from mpsd.commands.language.dispatch import answer_error, dispatch
from mpsd.commands.language.grammar import Rejected
from mpsd.model.authority import Caller
from mpsd.model.domain import Defaults
from tests.unit.commands.language.fake_board import DEVICES, GIB, MIB, FakeBoard
from tests.unit.commands.language.test_grammar import ANY_LINES

ROOT = Caller(0, daemon_uid=0)
STRANGER = Caller(1000, daemon_uid=0)

# One valid line for each command that not everybody may give; 512 is a server of root's.
PRIVILEGED = {
    "start_server": "start_server -uid 0",
    "shutdown_server": "shutdown_server 512 -f",
    "terminate_client": "terminate_client 512 586",
    "set_default_active_thread_percentage": "set_default_active_thread_percentage 50",
    "set_active_thread_percentage": "set_active_thread_percentage 512 50",
    "set_default_device_pinned_mem_limit": "set_default_device_pinned_mem_limit 0 1G",
    "set_device_pinned_mem_limit": "set_device_pinned_mem_limit 512 0 1G",
    "set_default_client_priority": "set_default_client_priority 1",
    "sm_partition": "sm_partition add GPU-196e 2",
    "quit": "quit",
}


@pytest.fixture
def board() -> FakeBoard:
    board = FakeBoard()
    board.add_server(clients=(586,))
    return board


async def ask(board: FakeBoard, line: str, caller: Caller = ROOT) -> Answer:
    return await dispatch(board, caller, line.encode())


def test_every_privileged_command_has_its_line() -> None:
    assert set(PRIVILEGED) == {name for name, command in COMMANDS.items() if command.privilege is not CommandPrivilege.ANYONE}


@pytest.mark.parametrize("line", PRIVILEGED.values())
async def test_a_stranger_cannot_change_anything(board: FakeBoard, line: str) -> None:
    """The refusal is an answer with status 0, as the vendor's, and nothing has happened."""
    answer = await ask(board, line, STRANGER)
    assert "rivilege" in answer.stdout
    assert answer.status == 0
    assert board.defaults() == Defaults()
    assert (board.forwarded, board.ended, len(board.running)) == ([], [], 1)


@pytest.mark.parametrize("line", PRIVILEGED.values())
@pytest.mark.parametrize(
    "caller", [ROOT, Caller(0, daemon_uid=1000), Caller(1000, daemon_uid=1000), Caller(7, 0, is_admin=True)]
)
async def test_root_and_the_owner_may_do_everything(board: FakeBoard, line: str, caller: Caller) -> None:
    assert "rivilege" not in (await ask(board, line, caller)).stdout


async def test_anybody_may_start_a_server_for_the_own_uid(board: FakeBoard) -> None:
    assert await ask(board, "start_server -uid 1000", STRANGER) == Answer()
    assert [server.uid for server in board.running] == [0, 1000]


@pytest.mark.parametrize(("name", "line"), PRIVILEGED.items())
async def test_a_server_is_in_the_hands_of_its_user(board: FakeBoard, name: str, line: str) -> None:
    """No other user controls it, and its user may not change the daemon's own settings."""
    own = line.replace("512", str(board.add_server(uid=1000, clients=(587,)))).replace("-uid 0", "-uid 1000")
    is_allowed = COMMANDS[name].privilege is CommandPrivilege.USER
    assert ("rivilege" not in (await ask(board, own, STRANGER)).stdout) == is_allowed
    assert "rivilege" in (await ask(board, own, Caller(2000, daemon_uid=0))).stdout
    inside = (await ask(board, own, Caller(1000, daemon_uid=0, is_inside=False))).stdout  # of a container
    assert ("rivilege" not in inside) == (name == "start_server")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Rejected("Server PID?\n"), Answer("Server PID?\n", 0)),
        (errors.NoSuchServer("Server 7 not found"), Answer("Server 7 not found\n", 0)),
        (errors.NoSuchClient("no client 8"), Answer("no client 8\n", 0)),
        (errors.NotAllowed("not you"), Answer("not you\n", 0)),
        (errors.BadRequest("what?"), Answer("what?\n", 1)),
        (errors.NoSuchDevice("no device 9"), Answer("no device 9\n", 1)),
        (errors.VendorFailed("gpu0-0 is silent"), Answer("gpu0-0 is silent\n", 1)),
        (errors.Stopping("quitting"), Answer("quitting\n", 1)),
    ],
)
def test_a_refusal_is_an_answer(error: errors.MpsdError, answer: Answer) -> None:
    assert answer_error(error) == answer


async def test_what_the_board_refuses_is_told(board: FakeBoard) -> None:
    board.broken[512] = errors.VendorFailed("domain gpu0-0 did not answer within 5 s")
    answer = await ask(board, "get_active_thread_percentage 512")
    assert answer == Answer("domain gpu0-0 did not answer within 5 s\n", 1)


async def test_a_bug_is_not_hidden(board: FakeBoard) -> None:
    board.broken[512] = ZeroDivisionError()  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        await ask(board, "ps")


async def test_a_limit_is_sent_to_the_vendor_in_our_own_words(board: FakeBoard) -> None:
    """By ordinal, in M: the vendor neither knows the beginnings of UUIDs as devices nor refuses what it misreads."""
    await ask(board, "set_device_pinned_mem_limit 512x GPU-196F 2gb extra")
    await ask(board, "get_device_pinned_mem_limit 512 GPU-196f")
    await ask(board, "set_active_thread_percentage 512 0x10zz")
    assert board.forwarded == [
        (512, "set_device_pinned_mem_limit 512 1 2048M"),
        (512, "get_device_pinned_mem_limit 512 1"),
        (512, "set_active_thread_percentage 512 16"),
    ]


async def test_a_limit_is_sent_by_the_ordinal_of_the_domain(board: FakeBoard) -> None:
    pid = board.add_server(device_uuids=(DEVICES[1].uuid,))
    assert await ask(board, f"set_device_pinned_mem_limit {pid} 1 1G") == Answer()
    assert board.forwarded == [(pid, f"set_device_pinned_mem_limit {pid} 0 1024M")]
    refused = await ask(board, f"set_device_pinned_mem_limit {pid} 0 1G")
    assert (refused.status, len(board.forwarded)) == (1, 1)


async def test_a_refused_limit_leaves_the_others(board: FakeBoard) -> None:
    await ask(board, "set_default_device_pinned_mem_limit 0 1G")
    await ask(board, "set_default_device_pinned_mem_limit 1 1M")
    before = board.defaults()
    assert dict(before.pinned_limits) == {DEVICES[0].uuid: GIB, DEVICES[1].uuid: MIB}
    for line in ("0 1T", "0", "", "2 1G", "GPU-196 1G"):
        assert (await ask(board, f"set_default_device_pinned_mem_limit {line}")).status == 1
    assert board.defaults() is before
    await ask(board, "set_default_device_pinned_mem_limit 0 0G")
    assert dict(board.defaults().pinned_limits) == {DEVICES[1].uuid: MIB}


async def test_servers_of_several_domains_are_listed_together(board: FakeBoard) -> None:
    board.add_server(uid=1000, clients=(587,))
    assert (await ask(board, "get_server_list")).stdout == "512\n513\n"
    rows = (await ask(board, "ps")).stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["PID", "586", "587"]
    assert (await ask(board, "get_device_client_list")).stdout == "[0] 00:00.0, NVIDIA H200\n586.1\n587.1\n"


async def test_the_devices_of_several_domains_are_listed_together(board: FakeBoard) -> None:
    board.running.clear()
    board.add_server(device_uuids=(DEVICES[0].uuid,))
    board.add_server(device_uuids=(DEVICES[1].uuid,))
    sections = (await ask(board, "device_query --csv")).stdout.split("\n\n")
    assert [section.split("\n")[0] for section in sections] == ["Default", "Server 512", "Server 513"]
    assert [row.split(",")[::2][:2] for row in sections[0].splitlines()[2:]] == [
        ["0", DEVICES[0].uuid],
        ["1", DEVICES[1].uuid],
    ]


async def test_a_server_that_ends_while_it_is_asked_is_left_out(board: FakeBoard) -> None:
    gone = board.add_server(clients=(587,))
    board.broken[gone] = errors.NoSuchServer(f"Server {gone} not found")
    answer = await ask(board, "ps")
    assert ("587" in answer.stdout, answer.status, answer.stderr) == (False, 0, "")


async def test_an_answer_without_a_domain_says_so(board: FakeBoard) -> None:
    """A caller that counts clients must not take a part for the whole."""
    board.broken[board.add_server(clients=(587,))] = errors.VendorFailed("domain gpu0-1 is silent")
    for line in ("ps", "get_device_client_list"):
        answer = await ask(board, line)
        assert ("586" in answer.stdout, answer.status, answer.stderr) == (True, 1, "domain gpu0-1 is silent\n")


async def test_the_vendor_is_left_to_understand_partitions(board: FakeBoard) -> None:
    assert await ask(board, "sm_partition  add GPU-196e\t2") == Answer('Unknown command "sm_partition"\n')
    assert board.forwarded == [(None, "sm_partition add GPU-196e 2")]
    board.add_server()
    answer = await ask(board, "lspart")
    assert answer.stdout == 'Unknown command "lspart"\n'
    assert answer.stderr == "Asked the default domain alone; the domains with servers: gpu0-0, gpu0-1\n"


async def test_no_word_of_a_user_reaches_the_vendors_daemon(board: FakeBoard) -> None:
    """Every user may say lspart, and the daemon reads its commands as root."""
    await ask(board, "lspart -x " + "A" * 900, STRANGER)
    assert board.forwarded == [(None, "lspart")]


async def test_what_is_passed_on_is_bounded(board: FakeBoard) -> None:
    """The vendor's daemon dies of 4095 bytes, and an escape is longer than what it stands for."""
    assert (await dispatch(board, ROOT, b"sm_partition add " + b"\xff" * 1000)).status == 1
    assert board.forwarded == []


@pytest.mark.parametrize("pid", ["0", "-1", "-586", "abc"])
async def test_no_group_of_processes_is_terminated(board: FakeBoard, pid: str) -> None:
    assert (await ask(board, f"terminate_client 512 {pid}")).stdout.startswith("Invalid process")
    assert board.ended == []


@pytest.mark.parametrize(
    ("line", "seconds"),
    [("quit", None), ("quit -t 5", 5.0), ("quit -t 0", 0.0), ("quit -t 1.5", 1.0), ("quit -t x", None), ("quit x -t 1", None),
     ("quit -t -1", None), ("quit -t 99999999999999999999", 366 * 86400.0)],
)
async def test_quit(board: FakeBoard, line: str, seconds: float | None) -> None:
    assert await ask(board, line) == Answer()
    assert board.ended == [("daemon", seconds)]


async def test_help_names_every_command(board: FakeBoard) -> None:
    text = (await ask(board, "help")).stdout
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == list(COMMANDS)
    assert (await ask(board, "help quit")).stdout.startswith("quit [-t SECONDS]\n")
    assert (await ask(board, "help bogus")).stdout == 'Unknown command "bogus"\n'


@given(ANY_LINES, st.sampled_from([0, 1000]))
def test_no_line_is_too_odd_to_answer(line: bytes, uid: int) -> None:
    """And nothing but what the grammar made reaches a domain."""
    board = FakeBoard()
    board.add_server(clients=(586,))
    answer = trio.run(dispatch, board, Caller(uid, daemon_uid=0), line)
    assert len(answer.stdout) <= 8192 + 4 * len(line)
    assert answer.status in (0, 1)
    for _, forwarded in board.forwarded:
        assert len(forwarded) <= 1024
        assert forwarded.isprintable()
