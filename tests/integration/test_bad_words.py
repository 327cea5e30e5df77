"""Every bad input of bad_input.py is answered by one line that names what was asked and what was found, and changes nothing."""

import re
import socket
from io import StringIO
from pathlib import Path

import msgpack
import pytest
import rich.text  # noqa: F401  mpsd's program hides it from this process, which is mpsctl too, unless it is imported before
from mpsctl.program import main as mpsctl
from mpsctl.surroundings import Surroundings
from mpsd_client import calls

from mpsd.__main__ import main as mpsd
from mpsd.images.__main__ import main as mpsd_images
from tests.integration.bad_input import COMMANDS, CONFIGURATION, IMAGES, METHODS, MPSCTL_REFUSED, MPSCTL_USAGE, MPSD
from tests.integration.machine import Machine

pytestmark = pytest.mark.root
Said = pytest.CaptureFixture[str]


def words_of(line: str) -> list[str]:
    return re.split(" ", line) if line else []


def run_mpsctl(machine: Machine, line: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    around = Surroundings(out, err, machine.variables, lambda: 0.0, lambda uid: "root" if uid == 0 else str(uid))
    status = mpsctl([*words_of(line), "--socket", str(machine.pipe / "mpsd.sock")], around)
    return status, out.getvalue(), err.getvalue()


def is_one_line(said: str) -> bool:
    return said.count("\n") == 1 and not re.search(r"[<>]|Traceback|\bNone\b|b'", said)


@pytest.mark.parametrize(("line", "words"), MPSCTL_USAGE, ids=lambda each: each)
def test_a_wrong_command_line_of_mpsctl(line: str, words: str, capsys: Said) -> None:
    with pytest.raises(SystemExit) as stopped:
        mpsctl(words_of(line), Surroundings(StringIO(), StringIO(), {}, lambda: 0.0, str))
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert words in said.err
    assert is_one_line(said.err)
    assert said.err.endswith("--help\n")


@pytest.mark.parametrize(("line", "words"), MPSCTL_REFUSED, ids=lambda each: each)
def test_what_mpsd_refuses_to_mpsctl(line: str, words: str, shared: Machine) -> None:
    status, out, err = run_mpsctl(shared, line)
    assert (status, out) == (1, "")
    assert words in err
    assert is_one_line(err)


PROGRAMS = [(mpsd, *row) for row in MPSD] + [(mpsd_images, *row) for row in IMAGES]


@pytest.mark.parametrize(("main", "line", "status", "words"), PROGRAMS)
def test_a_wrong_command_line_of_mpsds_programs(main: object, line: str, status: int, words: str, capsys: Said) -> None:
    try:
        found = main(words_of(line))  # type: ignore[operator]
    except SystemExit as exc:
        found = exc.code
    said = capsys.readouterr().err
    assert found == status
    assert words in said
    assert is_one_line(said)


@pytest.mark.parametrize(("line", "answer"), COMMANDS)
def test_a_wrong_command_has_the_vendors_answer(line: str, answer: str, shared: Machine) -> None:
    said = shared.ask(line).stdout
    assert said.startswith(answer)
    assert said.count("\n") == 1


@pytest.mark.parametrize(("text", "words"), CONFIGURATION)
def test_a_wrong_configuration(text: str, words: str, tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "mpsd.toml").write_text(text)
    assert mpsd(["config", "--config", str(tmp_path / "mpsd.toml")]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert is_one_line(said)


@pytest.mark.parametrize(("method", "parameters", "words"), METHODS)
def test_a_wrong_request(method: str, parameters: dict[str, object], words: str, shared: Machine) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(20)
        sock.connect(str(shared.pipe / "mpsd.sock"))
        for number, (name, asked) in enumerate((("hello", {"version": 1}), (method, parameters))):
            sock.send(msgpack.packb([0, number, name, [asked]]))
            _, _, error, _ = msgpack.unpackb(sock.recv(65536))
    assert words in error["message"]
    assert is_one_line(error["message"] + "\n")


def test_make_room_explains_why_it_freed_nothing(shared: Machine) -> None:
    assert run_mpsctl(shared, "arena make-room 20G") == (1, "0 freed; mpsd evicts no arena: vault.eviction is off\n", "")


def test_bad_input_has_a_hundred_rows_and_changes_nothing(shared: Machine) -> None:
    rows = (*MPSCTL_USAGE, *MPSCTL_REFUSED, *MPSD, *IMAGES, *COMMANDS, *CONFIGURATION, *METHODS)
    assert len(set(map(str, rows))) == len(rows) >= 100
    with shared.mpsd() as asked:
        assert not list(asked.pages(calls.lease_list()))
        assert not list(asked.pages(calls.arena_list()))
        assert asked.ask(calls.limits_get()).default_active_thread_percentage == 100.0
