"""Events reach a person or a program, whole and unforged."""

import io
import json
import os
import pty
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from mpsd.config.log_options import LogOptions
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges, parse
from mpsd.log.journal import Journal, open_journal, render_human

TIME = "2026-11-20T12:00:00.123+00:00"


@pytest.fixture(autouse=True)
def fresh_structlog() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def open_file_journal(directory: Path, ranges: UidRanges = NO_RANGES, **settings: object) -> Journal:
    terminal = io.StringIO()
    log = LogOptions(**settings)  # type: ignore[arg-type]
    return open_journal(log, foreground=False, log_directory=str(directory), terminal=terminal, ranges=ranges)


def read_events(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "mpsd.log").read_text().splitlines()]


def test_in_the_background_events_are_json_in_the_log_directory(tmp_path: Path) -> None:
    journal = open_file_journal(tmp_path)
    structlog.get_logger().info("client.admitted", pid=7, name="a\nb\udcff", path=Path("/x"))
    journal.close()
    (event,) = read_events(tmp_path)
    assert list(event)[:3] == ["time", "level", "event"]
    assert (event["event"], event["pid"], event["name"]) == ("client.admitted", 7, "a\nb\udcff")


def test_an_exception_is_one_line_of_json(tmp_path: Path) -> None:
    journal = open_file_journal(tmp_path)
    try:
        raise ExceptionGroup("several", [ValueError("one"), OSError("two")])
    except ExceptionGroup:
        structlog.get_logger().exception("connection.bug")
    journal.close()
    (event,) = read_events(tmp_path)
    assert event["level"] == "error"
    assert "ValueError: one" in str(event["exception"])


def test_a_reload_changes_the_level_of_loggers_that_exist(tmp_path: Path) -> None:
    journal = open_file_journal(tmp_path, level="warning")
    log = structlog.get_logger()
    log.info("hidden")
    journal.configure(LogOptions(level="debug"))
    log.debug("shown")
    journal.close()
    assert [event["event"] for event in read_events(tmp_path)] == ["shown"]


def test_one_user_writes_so_many_lines_of_an_event_and_the_others_are_counted(tmp_path: Path) -> None:
    """A storm of connections wrote 47,501 lines, 18 MB."""
    journal = open_file_journal(tmp_path)
    log = structlog.get_logger()
    for _ in range(1000):
        log.info("client.waiting", uid=65534, reason="all domains are taken")
    log.info("client.waiting", uid=1000)
    log.warning("relay.evicted", uid=65534)
    for _ in range(1000):
        log.info("client.waiting", uid=0)
    journal.close()
    events = read_events(tmp_path)
    uids = Counter((event["event"], event.get("uid")) for event in events)
    shown = uids["client.waiting", 65534]
    assert 10 < shown < 100
    assert (uids["client.waiting", 1000], uids["relay.evicted", 65534], uids["client.waiting", 0]) == (1, 1, 1000)
    [told] = [event for event in events if event["event"] == "log.suppressed"]
    assert (told["of"], told["uid"], told["lines"]) == ("client.waiting", 65534, 1000 - shown)


def test_root_of_a_container_does_not_fill_the_log(tmp_path: Path) -> None:
    """It has root's uid, and is no operator."""
    journal = open_file_journal(tmp_path)
    for _ in range(3000):
        structlog.get_logger().info("client.waiting", uid=0)
    journal.close()
    *events, told = read_events(tmp_path)
    assert 1000 <= len(events) < 1500
    assert (told["of"], told["uid"], told["lines"]) == ("client.waiting", 0, 3000 - len(events))


def test_the_uids_of_one_range_are_one_user(tmp_path: Path) -> None:
    journal = open_file_journal(tmp_path, parse("eve:100000:65536\n"))
    for uid in range(100_000, 101_000):
        structlog.get_logger().info("client.waiting", uid=uid)
    journal.close()
    events = read_events(tmp_path)
    [told] = [event for event in events if event["event"] == "log.suppressed"]
    assert (told["uid"], told["lines"]) == (100_000, 1000 - len(events) + 1)
    assert len(events) < 100


def test_lines_that_name_no_user_are_limited_too(tmp_path: Path) -> None:
    journal = open_file_journal(tmp_path)
    for _ in range(5000):
        structlog.get_logger().info("client.stop", pid=7)
    structlog.get_logger().critical("daemon.bug")
    journal.close()
    events = Counter(str(event["event"]) for event in read_events(tmp_path))
    assert events["client.stop"] < 2000
    assert (events["daemon.bug"], events["log.suppressed"]) == (1, 1)


def test_a_log_directory_that_cannot_be_made_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "no directory").touch()
    journal = open_file_journal(tmp_path / "no directory")
    structlog.get_logger().info("lost")
    journal.close()
    assert journal.lost == 1


def test_when_writing_works_again_the_lost_lines_are_reported(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    directory.touch()  # a directory that is only missing would be made again
    journal = open_file_journal(directory)
    structlog.get_logger().info("lost")
    while not journal.lost:
        pass  # the thread is at it; the test's deadline stands
    directory.unlink()
    structlog.get_logger().info("kept")
    journal.close()
    assert [(event["event"], event.get("lines")) for event in read_events(directory)] == [("log.lines_lost", 1), ("kept", None)]


@pytest.mark.parametrize(("format", "human"), [("auto", False), ("json", False), ("human", True)])
def test_a_pipe_gets_json_unless_a_person_asked(format: str, human: bool) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as terminal:
        journal = open_journal(LogOptions(format=format), foreground=True, log_directory="/", terminal=terminal)  # type: ignore[arg-type]
        structlog.get_logger().info("client.admitted", pid=7)
        journal.close()
    line = os.read(reader, 4096).decode()
    os.close(reader)
    assert line.startswith("{") is not human
    assert "\033" not in line


def test_a_terminal_gets_colours() -> None:
    controller, end = pty.openpty()
    with open(end, "w") as terminal:
        journal = open_journal(LogOptions(), foreground=True, log_directory="/", terminal=terminal)
        structlog.get_logger().info("client.admitted", pid=7)
        journal.close()
        line = os.read(controller, 4096).decode()
    os.close(controller)
    assert "\033[32minfo" in line
    assert "client.admitted" in line


def test_a_stranger_cannot_forge_a_line() -> None:
    """Users choose the names of their processes."""
    line = render_human(
        {"time": TIME, "level": "info", "event": "client.admitted", "name": "x\n12:00:00 error\033[2J", "odd": "a b=c"},
        colours=False,
    )
    assert line.endswith('info    client.admitted name="x\\n12:00:00 error\\u001b[2J" odd="a b=c"')


def test_a_person_sees_the_trace_below_the_event() -> None:
    facts = {"time": TIME, "level": "error", "event": "bug", "n": 1.5, "none": None, "list": [1, "a"], "exception": "A\n  B"}
    line = render_human(facts, colours=False)
    assert line.splitlines()[0].endswith('error   bug n=1.5 none=None list=[1, "a"]')
    assert line.splitlines()[1:] == ["    A", "      B"]
