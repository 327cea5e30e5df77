"""The program in a process of its own: interrupted, without a reader, on a terminal."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from mpsctl import __version__ as version

import mpsd
from tests.unit.api.fake_daemon import OPERATOR
from tests.unit.ctl.console import Console, open_console

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, "-m", "mpsctl"]
PATIENCE_SECONDS = 20.0


def command(console: Console, *words: str) -> list[str]:
    return [*PROGRAM, "--socket", str(console.socket(OPERATOR)), *words]


async def until_somebody_follows(console: Console) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not console.daemon.bus.subscribers:  # noqa: ASYNC110
            await trio.sleep(0.005)


@pytest.mark.parametrize("words", [("events",), ("events", "--json"), ("top", "--json")])
async def test_ctrl_c_ends_it_without_a_word(words: tuple[str, ...], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        process = await trio.lowlevel.open_process(command(console, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        await until_somebody_follows(console)
        process.send_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE_SECONDS):
            assert process.stderr is not None
            said = await process.stderr.receive_some()
            assert await process.wait() == 130
        assert said == b""


@pytest.mark.parametrize("words", [("events",), ("events", "--json"), ("top", "--json")])
async def test_a_closed_pipe_ends_it_without_a_word(words: tuple[str, ...], tmp_path: Path, short_dir: Path) -> None:
    """As with `mpsctl events | head -1`."""
    reader, writer = os.pipe()
    async with open_console(tmp_path, short_dir) as console:
        process = await trio.lowlevel.open_process(command(console, *words), stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        await until_somebody_follows(console)
        os.close(reader)
        with trio.fail_after(PATIENCE_SECONDS):
            while process.poll() is None:
                console.daemon.bus.publish("domain.ready", {"domain": "d1"})
                await trio.sleep(0.01)
            assert process.stderr is not None
            assert await process.stderr.receive_some() == b""
        assert process.returncode == 141


async def test_a_table_into_a_closed_pipe_ends_without_a_word(tmp_path: Path, short_dir: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    async with open_console(tmp_path, short_dir) as console:
        done = await trio.run_process(command(console, "leases"), stdout=writer, capture_stderr=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=20, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_it_is_of_the_daemons_version() -> None:
    assert run("--version").stdout == f"mpsctl {version}\n"
    assert version == mpsd.__version__
    assert f'version = "{version}"' in (ROOT / "clients/mpsctl/pyproject.toml").read_text()


@pytest.mark.parametrize("words", [(), ("lease",), ("lease", "create"), ("top",), ("limits",), ("limits", "set")])
def test_help_is_there(words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {' '.join(('mpsctl', *words))}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_needs_no_mpsd(shell: str) -> None:
    done = run("completion", shell, "--socket", "/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert "recycle" in done.stdout
    if shell == "bash" or shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, timeout=20, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes_commands_and_options() -> None:
    script = run("completion", "bash").stdout + (
        '\nask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_mpsctl; echo "${COMPREPLY[*]}"; }'
        "\nask mpsctl le; ask mpsctl lease re; ask mpsctl leases --st; ask mpsctl leases --state ''"
    )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.splitlines() == ["leases lease", "renew release", "--state", "active queued"]
