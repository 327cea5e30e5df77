"""The self-test of sentinels, as the daemon runs it."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpsd.app import wire_sentinels
from mpsd.check.containment_proof import Proof, save_proof
from mpsd.errors import VendorFailed


@pytest.mark.parametrize("is_made", [True, False])
async def test_the_result_of_an_earlier_test_is_not_that_of_one_that_could_not_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_made: bool
) -> None:
    """An earlier mpsd stored a test without a context as one that failed: then it was not made again."""

    def store(why: str) -> None:
        save_proof(tmp_path, Proof("580", "H200", os.uname().release, why))

    async def run(found: object) -> str:
        if is_made:
            store("another client did not go on")
        return "it could not be made: the GPU is full"

    monkeypatch.setattr(wire_sentinels, "_run_test", run)
    monkeypatch.setattr("mpsd.gpu.nvml.read_driver", lambda library: "580")
    monkeypatch.setattr("mpsd.config.paths.nvml_library", lambda config: None)
    found = SimpleNamespace(
        config=None, devices=[SimpleNamespace(name="H200")], claim=SimpleNamespace(state_directory=tmp_path)
    )  # fmt: skip
    store("a client of the test got no context")
    if is_made:
        assert await wire_sentinels._prove(found) == "another client did not go on"  # type: ignore[arg-type]
    else:
        with pytest.raises(VendorFailed, match="the GPU is full"):
            await wire_sentinels._prove(found)  # type: ignore[arg-type]
