"""Output at 80 columns, compared with golden/; `MPSCTL_GOLDEN=write pytest tests/unit/ctl` writes these files anew."""

import os
from pathlib import Path

import pytest

from mpsd import __version__
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER
from tests.unit.ctl.console import Terminal, at_the_moment, furnish, open_console

GOLDEN = Path(__file__).parent / "golden"
SHOWN = {
    "leases": ("leases",),
    "lease-show": ("lease", "show", "3"),
    "lease-show-token": ("lease", "show", "1"),
    "clients": ("clients",),
    "why": ("why", "601"),
    "why-waiting": ("why", "587"),
    "domains": ("domains",),
    "devices": ("devices",),
    "queue": ("queue",),
    "faults": ("faults",),
    "fault": ("fault", "1"),
    "fault-suspected": ("fault", "2"),
    "fault-device": ("fault", "3"),
    "blame": ("blame",),
    "limits": ("limits",),
    "arenas": ("arenas",),
    "arena-show": ("arena", "show", "weights"),
    "arena-show-unheld": ("arena", "show", "cache"),
    "services": ("services",),
    "service-show": ("service", "show", "weights"),
    "top": ("top", "--once"),
}


@pytest.mark.parametrize("name", SHOWN)
async def test_what_is_shown_at_80_columns(name: str, tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        with at_the_moment(monkeypatch):
            out = await console.answer(*SHOWN[name])
    assert max(map(len, out.splitlines())) <= 80
    compare(name, out)


def compare(name: str, out: str) -> None:
    file = GOLDEN / f"{name}.txt"
    out = out.replace(f"mpsd {__version__} ", "mpsd VERSION ")
    if os.environ.get("MPSCTL_GOLDEN") == "write":
        file.write_text(out)
    assert out == file.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(SHOWN)


async def test_what_no_terminal_shows_is_not_cut(tmp_path: Path, short_dir: Path) -> None:
    """A program that reads a table gets all its text, each row on one line."""
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        lines = (await console.answer("leases", COLUMNS="")).splitlines()
    assert "nightly-evaluation-of-the-large-model" in lines[3]
    assert len(lines) == 4
    assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("columns", ["20", "40", "60"])
async def test_a_narrow_terminal_has_one_line_a_row(columns: str, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        assert len((await console.answer("clients", COLUMNS=columns)).splitlines()) == 6


@pytest.mark.parametrize(
    ("is_terminal", "environ", "has_colours"),
    [
        pytest.param(True, {}, True, id="a terminal"),
        pytest.param(True, {"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param(True, {"NO_COLOR": ""}, True, id="an empty NO_COLOR is none"),
        pytest.param(True, {"TERM": "dumb"}, False, id="a terminal that cannot"),
        pytest.param(False, {}, False, id="a pipe"),
    ],
)
async def test_colours_are_for_terminals(
    is_terminal: bool, environ: dict[str, str], has_colours: bool, tmp_path: Path, short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No escape of any sort otherwise, bold and dim included; and what the environment forces on others does not count."""
    for name, value in {"TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}.items():
        monkeypatch.setenv(name, value)
    async with open_console(tmp_path, short_dir) as console:
        for words in (("domains",), ("status",), ("top", "--once")):
            out = await console.answer(*words, out=Terminal() if is_terminal else None, **environ)
            assert ("\033" in out) is has_colours, words


async def test_a_user_sees_what_is_theirs(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert "training-2000" in await console.answer("leases", peer=OPERATOR)
        assert "training-2000" not in await console.answer("leases", peer=OWNER)
        assert await console.answer("leases", peer=STRANGER) == "no leases\n"
        assert await console.answer("clients", peer=STRANGER) == "no clients\n"
        assert await console.answer("queue", peer=STRANGER) == "no one waits\n"
        assert "a-secret-of-user-1000" in await console.answer("lease", "show", "1", peer=OWNER)
        assert "a-secret" not in await console.answer("lease", "show", "1", peer=OPERATOR)


async def test_nobodys_words_move_the_cursor(tmp_path: Path, short_dir: Path) -> None:
    """Nor are they taken for markup: what a stranger's process is called is shown as it is."""
    async with open_console(tmp_path, short_dir) as console:
        fakes = console.daemon.fakes
        process = next(iter(fakes.leases.identities))
        identity = fakes.leases.identities[process]
        fakes.leases.identities[process] = type(identity)(process, identity.uid, container="[red]x\033[2J\n:boom:")
        out = await console.answer("why", str(process.pid), out=Terminal(), NO_COLOR="1")
    assert "[red]x\\x1b[2J\\n:boom:" in out
    assert "\033" not in out
