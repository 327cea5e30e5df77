"""Finding mpsd: also from a member of a service with CUDA directed to a domain's own directory."""

import os
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import _enlisting as enlisting
from mpsd_client._place import socket_path

from tests.unit.client.fake_mpsd import FakeMpsd


@pytest.mark.parametrize(
    ("ours", "cuda", "found"),
    [
        (None, None, "/tmp/nvidia-mps/mpsd.sock"),
        (None, "/p", "/p/mpsd.sock"),
        ("", "", "/tmp/nvidia-mps/mpsd.sock"),
        ("/o", "/p", "/o/mpsd.sock"),
        ("/o", None, "/o/mpsd.sock"),
        ("", "/p", "/p/mpsd.sock"),
    ],
)
def test_the_socket_is_in_the_pipe_directory_that_is_mpsds(
    monkeypatch: pytest.MonkeyPatch, ours: str | None, cuda: str | None, found: str
) -> None:
    for name, value in (("MPSD_PIPE_DIRECTORY", ours), ("CUDA_MPS_PIPE_DIRECTORY", cuda)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert socket_path(None) == found
    assert socket_path("/else/where") == "/else/where"


class LeadingMpsd(FakeMpsd):
    """Without root: a member's CUDA has to go to a domain's own directory."""

    def _answer(self, method: str, facts: dict[str, Any], fds: list[int]) -> tuple[Any, list[int]]:
        if method == "service.enlist":
            return {"environment": {"CUDA_MPS_PIPE_DIRECTORY": "/state/domains/d2/pipe"}}, []
        return super()._answer(method, facts, fds)


def test_a_member_that_is_led_into_a_domain_still_finds_mpsd(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second service, a client, an arena, and mpsctl in one of its children."""
    monkeypatch.setenv("MPSD_PIPE_DIRECTORY", "")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(short_dir))
    monkeypatch.setattr(enlisting, "has_cuda_begun", lambda: False)
    mpsd = LeadingMpsd(short_dir / "mpsd.sock")
    enlisting.enlist("llm", socket_path(None))
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/state/domains/d2/pipe"
    assert socket_path(None) == str(short_dir / "mpsd.sock")
    mpsd.close()
