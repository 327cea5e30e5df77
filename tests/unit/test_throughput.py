"""The picture of tokens over time: what is counted, and that it can be drawn."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECOND = 1_000_000_000
FAULT = {"mark": "fault", "monotonic_ns": 100 * SECOND, "text": "a trap"}


@pytest.fixture(scope="module")
def throughput() -> ModuleType:
    spec = importlib.util.spec_from_file_location("throughput", ROOT / "clients/demo/throughput.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def record(path: Path, *seconds: float, mark: dict[str, object] | None = FAULT) -> Path:
    """Return a record of tokens at these seconds from the fault."""
    lines = [{"monotonic_ns": round((100 + at) * SECOND), "request": 1, "index": number} for number, at in enumerate(seconds)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *([mark] if mark else [])]))
    return path


def test_rates_are_of_bins_that_begin_with_the_fault(throughput: ModuleType, tmp_path: Path) -> None:
    found = throughput.read("x", record(tmp_path / "r", -0.55, -0.45, -0.25, 0.1, 0.2, 0.3, 0.6, 1.1))
    assert found.rates(0.5) == ([-0.75, -0.25, 0.25, 0.75], [2.0, 4.0, 6.0, 2.0])  # the last bin is not over


def test_silence_is_what_followed_the_fault(throughput: ModuleType, tmp_path: Path) -> None:
    assert throughput.read("x", record(tmp_path / "r", -9, -0.5, 1.5, 1.75)).silence_seconds == 2.0
    assert throughput.read("x", record(tmp_path / "r", -9, -0.5)).silence_seconds == 0.0
    assert throughput.read("x", record(tmp_path / "r")).rates() == ([], [])


def test_a_record_without_a_fault_is_refused(throughput: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no mark of a fault"):
        throughput.read("x", record(tmp_path / "r", 1.0, mark=None))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_can_be_drawn(throughput: ModuleType, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    out = tmp_path / f"out.{kind}"
    records = [throughput.read(name, record(tmp_path / name, -0.5, 0.2, 0.4)) for name in ("mpsd", "stock")]
    throughput.plot(records, out, "a title")
    assert out.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")
