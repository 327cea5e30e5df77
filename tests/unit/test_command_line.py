"""The command line of the daemon, as the front end, an operator and systemd use it."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpsd.__main__ import main, parse_arguments, parse_invocation
from mpsd.config.loading import Invocation


def run(*arguments: str, environ: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the front end starts it: isolated, and with almost no environment."""
    command = [sys.executable, "-I", "-m", "mpsd", *arguments]
    return subprocess.run(command, env=environ or {}, capture_output=True, text=True, timeout=20, check=False, **options)


def test_serve_takes_what_the_front_end_gives() -> None:
    words = ["serve", "--background", "--multiuser-server", "--ready-devices", "--ready-fd", "7", "-S", "extra", "--odd=1"]
    arguments, unknown = parse_arguments(words)
    assert unknown == ["-S", "extra", "--odd=1"]
    assert parse_invocation(arguments) == Invocation(
        foreground=False, multiuser_server=True, ready_devices=True, ready_fd=7, config_file=None, overrides={}
    )


def test_serve_is_in_the_foreground_unless_told_otherwise() -> None:
    arguments, _ = parse_arguments(["serve", "--backend", "sim", "--config", "/x.toml"])
    assert parse_invocation(arguments) == Invocation(config_file="/x.toml", overrides={"backend": "sim"})


@pytest.mark.parametrize("words", ["--backend sim --config /x.toml serve", "serve --backend=sim --config=/x.toml"])
def test_shared_options_may_stand_before_or_after_the_command(words: str) -> None:
    arguments, _ = parse_arguments(words.split())
    assert parse_invocation(arguments) == Invocation(config_file="/x.toml", overrides={"backend": "sim"})


def test_a_refused_configuration_reaches_the_front_end(tmp_path: Path) -> None:
    """The user of `-d` reads it on the terminal, where a log file alone would be missed."""
    (tmp_path / "bad.toml").write_text("spare = 1\n")
    reader, writer = os.pipe()
    done = run("serve", "--background", "--ready-fd", str(writer), "--config", str(tmp_path / "bad.toml"), pass_fds=[writer])
    os.close(writer)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    assert done.returncode == 1
    assert said == f"1\n{tmp_path}/bad.toml: spare: no such option; did you mean domains.spares?\n"


def test_a_package_that_is_missing_is_said_to_the_front_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mpsd.app.start", None)  # importing it fails
    monkeypatch.delattr("mpsd.app.start", raising=False)  # another test may have imported it
    (tmp_path / "mpsd.toml").touch()
    reader, writer = os.pipe()
    assert main(["serve", "--background", "--ready-fd", str(writer), "--config", str(tmp_path / "mpsd.toml")]) == 1
    assert os.read(reader, 4096).startswith(b"1\nmpsd is not installed completely: ")
    assert gc.isenabled()
    os.close(reader)


def test_the_version_needs_neither_trio_nor_structlog() -> None:
    """Health checks call it often; the daemon's libraries cost a tenth of a second."""
    code = "import sys; from mpsd.__main__ import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'trio', 'structlog', 'asyncio', 'pynvml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == ["mpsd 0.1.0", "[]"]


def test_config_prints_a_file_that_can_be_used(tmp_path: Path) -> None:
    done = run("config", "--print", environ={"MPSD_BACKEND": "sim", "MPSD_CONFIG": os.devnull})
    assert done.returncode == 0
    assert '\nbackend = "sim"\n' in done.stdout
    (tmp_path / "mpsd.toml").write_text(done.stdout)
    assert run("config", "--config", str(tmp_path / "mpsd.toml")).stdout == done.stdout


@pytest.mark.parametrize("arguments", [["check"], ["--check"], ["check", "--json"], ["--check", "--json"]])
def test_check_answers_in_both_spellings(arguments: list[str]) -> None:
    done = run(*arguments, environ={"MPSD_CONFIG": os.devnull})
    assert done.returncode in (0, 1)
    assert done.stdout.startswith("{") is ("--json" in arguments)
    assert done.stderr == ""
