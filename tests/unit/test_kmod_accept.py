"""kmod/accept, without a GPU."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ACCEPT = Path(__file__).parents[2] / "kmod" / "accept"


@pytest.fixture
def accept(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its code, as a module."""
    spec = spec_from_loader("kmod_accept", SourceFileLoader("kmod_accept", str(ACCEPT)))
    assert spec
    assert spec.loader
    made = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kmod_accept", made)  # dataclasses look there
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(made)
    return made


def test_a_client_that_never_starts_to_work_is_given_up(accept: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "START_SECONDS", 0.05)
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, text=True) as client:
        try:
            with pytest.raises(accept.NothingTried, match="does not start"):
                accept.wait_ready(client)
            assert client.returncode == -9
        finally:
            client.kill()


def test_nothing_is_tried_where_mpsctl_cannot_list_the_clients(
    accept: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It took them for none, and a fault could have ended them."""
    mpsctl = tmp_path / "mpsctl"
    mpsctl.write_text('#!/bin/sh\n[ "$1" = status ] || { echo refused >&2; exit 1; }\n')
    mpsctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(accept.NothingTried, match="mpsctl clients fails: refused"):
        accept.must_be_alone(accept.Mpsd())
