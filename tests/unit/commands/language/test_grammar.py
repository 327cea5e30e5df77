"""The grammar on malformed lines; test_transcript.py has ordinary ones."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpsd.commands.language import grammar
from mpsd.commands.language.command_table import COMMANDS
from mpsd.commands.language.grammar import MAX_LINE_BYTES, LineRequest, Rejected, parse_words, printable

NAMES = st.sampled_from(sorted(COMMANDS))
FLAGS = st.sampled_from(["-p", "-uid", "--uid", "-f", "-t", "--csv", "-", "--", "add", "rm", "0x", "nan", "inf"])
NUMBERS = st.integers(-(10**30), 10**30).map(str)
WORDS = st.one_of(FLAGS, NUMBERS, st.floats().map(str), st.from_regex(r"\A[0-9]{1,25}[mgkt]?b?\Z"), st.text(max_size=20))
COMMAND_LINES = st.builds(
    lambda name, words, blank: blank.join([name, *words]).encode("utf-8", "surrogatepass"),
    NAMES,
    st.lists(WORDS, max_size=6),
    st.sampled_from([" ", "\t", "  ", "\r ", "\x0b", "\0"]),
)
ANY_LINES = st.one_of(st.binary(max_size=300), COMMAND_LINES)


def parse(line: bytes) -> LineRequest | str:
    """Parse like dispatch(), without a board."""
    try:
        words = parse_words(line)
        return COMMANDS[words.name].parse(words.arguments) if words.name in COMMANDS else words.name
    except Rejected as rejected:
        return str(rejected)


@given(ANY_LINES)
@example(b"")
@example(b"\0")
@example(b"get_server_status " + b"9" * 4000)
@example(b"set_default_active_thread_percentage 0x1p99999")
@example(b"set_default_active_thread_percentage " + b"1" * 4000 + b"e" + b"9" * 40)
@example("start_server -uid ٣".encode())
@example(b"\xff" * MAX_LINE_BYTES)
def test_every_line_is_a_request_or_a_refusal(line: bytes) -> None:
    check_line(line)


@pytest.mark.slow
@pytest.mark.deadline(600)
@settings(max_examples=4000)
@given(st.one_of(ANY_LINES, st.binary(max_size=MAX_LINE_BYTES + 2)))
def test_every_line_is_a_request_or_a_refusal_at_length(line: bytes) -> None:
    check_line(line)


def check_line(line: bytes) -> None:
    parsed = parse(line)
    if isinstance(parsed, str):
        assert len(parsed) <= 4 * len(line) + 200
        assert parsed.rstrip("\n").replace("\n", "").isprintable()
    elif isinstance(parsed, grammar.StartServer):
        assert 0 <= parsed.uid < 2**32 - 1
    elif isinstance(parsed, grammar.SetPercent):
        assert parsed.thread_percent is None or 0 < parsed.thread_percent <= 100


@given(st.binary(max_size=300))
def test_what_is_printed_is_printable_and_bounded(raw: bytes) -> None:
    shown = printable(raw)
    assert shown.isprintable()
    assert len(shown.encode()) <= 4 * len(raw)


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=100))
def test_printable_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text.encode()) == text


@given(NAMES, st.lists(st.from_regex(r"\A[!-~]+\Z"), max_size=5), st.text(" \t\r\n\x0b\x0c", min_size=1))
def test_words_survive_any_blanks_between_them(name: str, words: list[str], blank: str) -> None:
    line = blank + blank.join([name, *words]) + blank
    assert parse_words(line.encode()) == grammar.Words(name, tuple(words))


def test_a_line_too_long_is_refused_before_it_is_read() -> None:
    assert parse_words(b"x" * MAX_LINE_BYTES).name == "x" * MAX_LINE_BYTES
    with pytest.raises(Rejected, match="4097 bytes") as caught:
        parse_words(b"x" * (MAX_LINE_BYTES + 1))
    assert caught.value.status == 1


PIDS = st.integers(1, 4_194_304)
SECONDS = st.one_of(st.none(), st.integers(0, 10**6).map(float))
PERCENTS = st.floats(0, 100, exclude_min=True)
DEVICES = st.from_regex(r"\AGPU-[0-9a-f]{8}\Z")
REQUESTS = st.one_of(
    st.builds(lambda pid: (f"get_client_list {pid}", LineRequest(server_pid=pid)), PIDS),
    st.builds(lambda pid: (f"get_server_status {pid}", LineRequest(server_pid=pid)), PIDS),
    st.builds(lambda pid: (f"ps -p {pid}", LineRequest(server_pid=pid)), PIDS),
    st.builds(lambda pid: (f"get_device_client_list {pid}", LineRequest(server_pid=pid)), PIDS),
    st.builds(lambda uid: (f"start_server -uid {uid}", grammar.StartServer(uid=uid)), st.integers(0, 2**32 - 2)),
    st.builds(
        lambda pid, forced: (
            f"shutdown_server {pid}{' -f' * forced}",
            grammar.ShutdownServer(server_pid=pid, is_forced=forced),
        ),
        PIDS,
        st.booleans(),
    ),
    st.builds(
        lambda pid, client: (
            f"terminate_client {pid} {client}",
            grammar.TerminateClient(server_pid=pid, client_pid=client),
        ),
        PIDS,
        PIDS,
    ),
    st.builds(
        lambda seconds: ("quit" if seconds is None else f"quit -t {seconds:.0f}", grammar.Quit(timeout_seconds=seconds)),
        SECONDS,
    ),
    st.builds(
        lambda pid, percent: (
            f"set_active_thread_percentage {pid} {percent!r}",
            grammar.SetPercent(server_pid=pid, thread_percent=percent),
        ),
        PIDS,
        PERCENTS,
    ),
    st.builds(
        lambda pid, device, size: (
            f"set_device_pinned_mem_limit {pid} {device} {size}M",
            grammar.PinnedLimit(server_pid=pid, device=device, value=f"{size}M"),
        ),
        PIDS,
        DEVICES,
        st.integers(0, 10**9),
    ),
    st.builds(
        lambda pid, csv: (
            f"device_query {pid}{' --csv' * csv}",
            grammar.DeviceQuery(server_pid=pid, is_csv=csv),
        ),
        PIDS,
        st.booleans(),
    ),
)


@given(REQUESTS)
def test_a_request_survives_being_written(written: tuple[str, LineRequest]) -> None:
    line, request = written
    assert parse(line.encode()) == request
