"""The C client with many threads, under sanitizers; and as a clean header.  Spoiled answers: tests/fuzz."""

import subprocess

import pytest

from tests.native.c_client_drive import C_CLIENT, ROOT, build


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_share_a_session_and_an_arena(sanitizer: str) -> None:
    program = build("stress", sanitizer)
    done = subprocess.run([program, "8", "200"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("PASS\n")


LANGUAGES = {"C11": ("gcc", "c", "c11"), "C17": ("gcc", "c", "c17"), "C++17": ("g++", "c++", "c++17")}


@pytest.mark.slow
@pytest.mark.parametrize("cuda", ["with cuda.h", "without"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_header_is_clean(language: str, cuda: str) -> None:
    """No warning, alone and in two files that share one copy."""
    compiler, name, standard = LANGUAGES[language]
    flags = [
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Wpedantic",
        "-Wconversion",
        "-Wno-sign-conversion",
        "-Werror",
        "-O2",
        "-fsyntax-only",
    ]
    types = ["-isystem", str(ROOT / "native/sim/include")] if cuda.startswith("with c") else ["-DMPSD_NO_CUDA_H"]
    for before in ("", "#define MPSD_API\n", "#define MPSD_API\n#define MPSD_NO_CODE\n"):
        command = [compiler, "-x", name, f"-std={standard}", "-D_GNU_SOURCE", *flags, *types, f"-I{C_CLIENT}/include", "-"]
        done = subprocess.run(
            command, input=f"{before}#include <mpsd.h>\n", capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
