"""vLLM's weights in an arena: what can be tried without a GPU."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from mpsd_client.vllm import register

HAS_VLLM = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_who_does_not_ask_for_it_can_have_any_vllm() -> None:
    with pytest.warns(RuntimeWarning, match=r"for vLLM 0\.33: No module named"):
        register()


def test_vllm_finds_the_plugin() -> None:
    text = (Path(__file__).resolve().parents[3] / "clients/python/pyproject.toml").read_text()
    plugins = tomllib.loads(text)["project"]["entry-points"]["vllm.general_plugins"]
    assert [EntryPoint(name, value, "vllm.general_plugins").load() for name, value in plugins.items()] == [register]


@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here")
def test_a_model_of_vllm_is_mapped_as_it_was_loaded(tmp_path: Path) -> None:
    """Described in vllm_on_a_cpu.py."""
    script = Path(__file__).with_name("vllm_on_a_cpu.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=True, timeout=280)
    checks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    assert len(checks) == 10
    assert not [each["check"] for each in checks if not each["holds"]]
