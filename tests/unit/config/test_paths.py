"""Where things are: one state directory per pipe directory, and never our own front end in the vendor's place."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.config import paths
from mpsd.config.options import STATE_DIRECTORY_BYTES, Config, VendorOptions
from mpsd.config.paths import MARKER, PROGRAM, find_vendor_control, state_directory
from mpsd.errors import UnusablePath, VendorFailed

ROOT = Path(__file__).resolve().parents[3]


def make_program(folder: Path, content: bytes = b"\x7fELF vendor", mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / PROGRAM
    program.write_bytes(content)
    program.chmod(mode)
    return program


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own programs, if it has any, are out of sight."""
    monkeypatch.setattr(paths, "SEARCHED", (str(tmp_path / "vendor" / PROGRAM), str(tmp_path / f"{PROGRAM}.vendor")))
    monkeypatch.setattr(paths, "FOLDERS", ())


def test_root_keeps_state_in_run_and_others_in_their_own_place(tmp_path: Path) -> None:
    config = Config()
    name = state_directory(config, 0, {}).name
    assert state_directory(config, 0, {"XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/run/mpsd", name)
    assert state_directory(config, 1000, {"XDG_RUNTIME_DIR": "/run"}) == Path("/run/mpsd", name)
    assert state_directory(config, 1000, {"XDG_RUNTIME_DIR": "/nonexistent"}) == Path("/tmp/mpsd-1000", name)
    assert state_directory(config, 1000, {}) == Path("/tmp/mpsd-1000", name)


def test_each_pipe_directory_has_its_own_state() -> None:
    first, same, other = (
        state_directory(Config(pipe_directory=path), 0, {}) for path in ("/tmp/nvidia-mps", "/tmp//nvidia-mps/", "/tmp/b")
    )
    assert first == same != other


def test_a_state_directory_that_leaves_no_room_for_sockets_is_refused(tmp_path: Path) -> None:
    """The kernel takes 107 bytes; an unprivileged user's runtime directory may be longer than root's."""
    longest = "/" + "x" * (STATE_DIRECTORY_BYTES - 1)
    assert str(state_directory(Config(state_directory=longest), 0, {})) == longest
    deep = tmp_path / ("y" * STATE_DIRECTORY_BYTES)
    deep.mkdir()
    with pytest.raises(UnusablePath, match="bytes; at most"):
        state_directory(Config(), 1000, {"XDG_RUNTIME_DIR": str(deep)})


@pytest.mark.usefixtures("nothing_installed")
def test_the_vendor_program_is_searched_in_order(tmp_path: Path) -> None:
    environ = {"PATH": f"relative::{tmp_path / 'bin'}"}
    on_path = make_program(tmp_path / "bin")
    assert find_vendor_control(Config(), environ) == on_path
    aside = tmp_path / f"{PROGRAM}.vendor"
    os.link(on_path, aside)
    assert find_vendor_control(Config(), environ) == aside
    ours = make_program(tmp_path / "vendor")
    assert find_vendor_control(Config(), environ) == ours


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"\x7fELF " + MARKER + b" 1", 0o755, "mpsd's own front end"),
        (b"\x7fELF", 0o644, "not executable"),
        (b"", 0o644, "not executable"),
    ],
)
def test_what_is_not_the_vendors_is_passed_over(content: bytes, mode: int, why: str, tmp_path: Path) -> None:
    """mpsd that drove its own front end would talk to itself for ever."""
    unfit = make_program(tmp_path / "a", content, mode)
    fit = make_program(tmp_path / "b")
    assert find_vendor_control(Config(), {"PATH": f"{unfit.parent}:{fit.parent}"}) == fit
    with pytest.raises(VendorFailed, match=f"{unfit} is {why}; not there: "):
        find_vendor_control(Config(), {"PATH": str(unfit.parent)})


@pytest.mark.usefixtures("nothing_installed")
def test_a_program_that_was_named_is_the_only_one(tmp_path: Path) -> None:
    """A fallback would start a daemon that was not asked for."""
    make_program(tmp_path / "bin")
    config = replace(Config(), vendor=VendorOptions(control=str(tmp_path / "missing" / PROGRAM)))
    with pytest.raises(VendorFailed, match=f"not there: {tmp_path}/missing$"):
        find_vendor_control(config, {"PATH": str(tmp_path / "bin")})


def test_the_simulator_is_used_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "native_directory", lambda: tmp_path)
    simulated = make_program(tmp_path / "sim" / "bin")
    assert find_vendor_control(Config(backend="sim"), {}) == simulated


def test_our_own_front_end_carries_the_marker() -> None:
    program = ROOT / "clients/control" / PROGRAM
    if not program.exists():
        pytest.skip("the front end is not built")
    assert MARKER in program.read_bytes()
