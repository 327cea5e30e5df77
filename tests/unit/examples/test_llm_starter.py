"""How the LLM example starts mpsctl."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest
import serve


def test_the_working_directory_gives_no_mpsctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one in PATH, Python would take the module that others may have put there."""
    (tmp_path / "mpsctl.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    options = argparse.Namespace(service="llm", standbys=1, sm="", memory_limit="", log_dir="")
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(command))
    serve.starter_of(options, "llm.sock", [])
    monkeypatch.undo()
    [command] = started
    words = [*command[: command.index("mpsctl") + 1], "--version"]
    assert subprocess.run(words, cwd=tmp_path, timeout=60, capture_output=True, check=False).stdout
    assert not (tmp_path / "ran").exists()
