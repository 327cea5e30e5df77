"""The text of the hash kernel that mpsd-imager gives to the GPU's driver is that of its source."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def build() -> ModuleType:
    found = spec_from_file_location("kernel_build", ROOT / "native/kernel/build.py")
    assert found
    assert found.loader
    made = module_from_spec(found)
    found.loader.exec_module(made)
    return made


def test_the_text_is_of_this_source(build: ModuleType) -> None:
    """Without NVRTC, too: its first line has the source's hash."""
    first = build.TARGET.read_text().partition("\n")[0]
    version = first.partition("NVRTC ")[2].partition(",")[0]
    assert f"{first}\n" == build.head(version), "the source has changed: make kernel"


def test_nvrtc_makes_the_same_text(build: ModuleType) -> None:
    text = build.TARGET.read_text()
    try:
        version = build.nvrtc_version()
    except (ImportError, RuntimeError) as exc:
        pytest.skip(f"needs NVRTC (pip install nvidia-cuda-nvrtc): {exc}")
    if not text.startswith(build.head(version)):
        pytest.skip(f"NVRTC {version} is installed, and another one has made the text: {text.partition(':')[0]}")
    assert build.text() == text
