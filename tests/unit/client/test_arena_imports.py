"""The cost of importing mpsd_client: a program that only calls mpsd needs neither trio, nor PyTorch, nor the C part."""

import importlib.util
import subprocess
import sys

import mpsd_client
import pytest


def test_asking_mpsd_needs_no_more_than_msgpack() -> None:
    heavy = {"trio", "torch", "cffi", "_cffi_backend", "mpsd_client._native"}
    text = f"import sys, mpsd_client; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_is_there_when_it_is_asked_for() -> None:
    assert not [name for name in mpsd_client.__all__ if getattr(mpsd_client, name, None) is None]
    with pytest.raises(AttributeError, match="Areena"):
        _ = mpsd_client.Areena


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_pytorch_its_module_says_so() -> None:
    with pytest.raises(ModuleNotFoundError, match="torch"):
        importlib.import_module("mpsd_client.torch")
