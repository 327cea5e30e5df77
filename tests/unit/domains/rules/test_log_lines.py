"""The lines are the vendor's own, of driver 580 on an H200."""

import pytest

from mpsd.domains.rules.log_lines import (
    ClientArrived,
    ClientGone,
    ContextClosed,
    ContextOpened,
    OwnCommands,
    ServerExited,
    ServerFault,
    ServerReady,
    ServerStarting,
    parse_line,
    read_news,
)

HEAD = "[2026-11-20 12:29:55.053 {} {:5d}] "


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("Control", "Starting new server 770 for user 1000", ServerStarting(770, 1000)),
        ("Control", "NEW SERVER 770: Ready", ServerReady(770)),
        ("Control", "Server 652 exited with status 0", ServerExited(652, 0)),
        ("Server", "Server is handling a fatal GPU error.", ServerFault(770)),
        ("Server", "Client {PID: 767, Context ID: 1} connected", ContextOpened(770, 767)),
        ("Server", "Client {PID: 767, Context ID: 0} connected", ClientArrived(770, 767)),
        ("Server", "Status of client {PID: 767, Context ID: 2} is ACTIVE", ClientArrived(770, 767)),
        ("Server", "Failed to accept client {PID: 767, Context ID: 0} with status 807", ClientArrived(770, 767)),
        (
            "Server",
            "Client {PID: 766, Context ID: 1} exiting. Number of active client contexts is 1.",
            ContextClosed(770, 766, 1),
        ),
        ("Server", "Client process 766 disconnected", ClientGone(770, 766)),
        ("Server", "The following devices will be reset:", None),
        ("Control", "Client process 766 disconnected", None),
    ],
)
def test_news(source, text, expected):
    line = parse_line(HEAD.format(source, 770) + text)
    assert line is not None
    assert (line.source, line.pid, line.text) == (source, 770, text)
    assert read_news(line) == expected


@pytest.mark.parametrize("text", ["", "garbage", "[2026-11-20 12:29:55.053 Server", "[x Control 1] y"])
def test_a_line_of_another_shape_is_no_line(text):
    assert parse_line(text) is None


def test_own_command_sessions_are_told_from_the_rest():
    own = OwnCommands()
    texts = ["Accepting connection...", "NEW UI", "Cmd:get_server_list", "770", "UI closed", "NEW CLIENT 1 from user 0: x"]
    lines = [parse_line(HEAD.format("Control", 469) + text) for text in texts]
    assert [own.is_own(line) for line in lines] == [True, True, True, True, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "Starting new server 770 for user 0",
        "NEW CLIENT 1 from user 0: Server already exists",
        "Server 770 exited with status 0",
        "Exit with status 0",
    ],
)
def test_what_happens_in_the_middle_of_a_session_of_our_own_is_not_ours(text: str) -> None:
    """The vendor's daemon answers `start_server` and writes that it starts one before it closes the session."""
    own = OwnCommands()
    texts = ["NEW UI", "Cmd:start_server -uid 0", text, "770", "UI closed"]
    lines = [parse_line(HEAD.format("Control", 469) + each) for each in texts]
    assert [own.is_own(line) for line in lines] == [True, True, False, True, True]


@pytest.mark.parametrize(
    "text",
    [
        "[2026-11-20 12:29:55.053 Server {}] x",
        "[2026-11-20 12:29:55.053 Control 1] NEW SERVER {}: Ready",
        "[2026-11-20 12:29:55.053 Control 1] Starting new server 1 for user {}",
        "[2026-11-20 12:29:55.053 Server 1] Client {{PID: {}, Context ID: 1}} connected",
        "[2026-11-20 12:29:55.053 Server 1] Client process {} disconnected",
    ],
)
def test_a_number_of_thousands_of_digits_is_none(text: str) -> None:
    """int() refuses it with an exception that callers do not expect."""
    line = parse_line(text.format("9" * 5000))
    assert line is None or read_news(line) is None
