"""mpsd._native and mpsd_client._native: the same bytes and numbers in C and in Python; errors name missing build tools."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpsd_client import _native as client

from mpsd import errors
from mpsd.keeper import messages
from mpsd.model import arena
from mpsd.native import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
C_CLIENT = ROOT / "clients/c/include"
DRIVER = ROOT / "native/sim/include"


def compile_c(source: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", *flags, "-x", "c", "-", "-fsyntax-only"]
    return subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)


def test_the_keepers_wire_is_that_of_its_header() -> None:
    assert messages._MESSAGE.size == ffi.sizeof("struct mpsd_keeper_message")
    assert messages._ENTRY.size == ffi.sizeof("struct mpsd_keeper_entry")
    assert messages._STAT.size == ffi.sizeof("struct mpsd_keeper_stat")
    assert (messages.MAJOR, messages.MINOR) == (lib.MPSD_KEEPER_MAJOR, lib.MPSD_KEEPER_MINOR)
    assert (messages.ID_BYTES, messages.PAGE) == (lib.MPSD_KEEPER_ID_BYTES, lib.MPSD_KEEPER_PAGE)
    assert {each.name: each.value for each in messages.KeeperOp} == {
        each.name: getattr(lib, f"MPSD_KEEPER_{each.name}") for each in messages.KeeperOp
    }
    assert all(each == getattr(lib, f"MPSD_KEEPER_{each.name}") for each in messages.Status)


def test_a_request_to_the_keeper_has_its_fields_where_the_header_says() -> None:
    """Each field differs, so that two that changed places would show."""
    fields = ["major", "minor", "op", "flags", "sequence", "status", "generation", "size", "item_flags", "count"]
    packed = messages._MESSAGE.pack(*range(1, 11), b"name", 11, 12)
    message = ffi.from_buffer("struct mpsd_keeper_message *", packed)
    assert [getattr(message, name) for name in fields] == list(range(1, 11))
    assert ffi.string(message.id) == b"name"
    assert list(message.reserved) == [11, 12]


def test_the_c_client_knows_mpsds_numbers() -> None:
    """A refusal that it distinguishes has mpsd's code."""
    codes = re.findall(r"\tMPSD_([A-Z_]+) = (\d+)", (C_CLIENT / "mpsd/session.h").read_text().partition("enum mpsd_code")[2])
    assert len(codes) > 10
    assert [(name, errors.ErrorCode[name].value) for name, _ in codes] == [(name, int(value)) for name, value in codes]
    assert arena.GRANULE == client.lib.MPSD_GRANULE
    assert arena.MOST_LAYOUT_BYTES == client.lib.MPSD_LAYOUT_BYTES
    assert arena.MOST_DESCRIPTORS == client.lib.MPSD_DESCRIPTORS


def driver_types() -> str:
    """For each type that driver.h declares itself: its name in C, its size and the offsets of its fields, as assertions."""
    names = [
        "CUdevice",
        "CUdeviceptr",
        "CUmemGenericAllocationHandle",
        "CUuuid",
        "CUresult",
        "CUmemLocation",
        "CUmemAllocationProp",
    ]
    fields = {
        "CUmemLocation": ["type", "id"],
        "CUmemAllocationProp": ["type", "requestedHandleTypes", "location", "win32HandleMetaData", "allocFlags"],
        "CUmemAccessDesc": ["location", "flags"],
    }
    types = client.ffi
    lines = [f'_Static_assert(sizeof({name}) == {types.sizeof(name)}, "{name}");' for name in [*names, "CUmemAccessDesc"]]
    for name, members in fields.items():
        lines += [
            f'_Static_assert(offsetof({name}, {each}) == {types.offsetof(name, each)}, "{name}.{each}");' for each in members
        ]
    numbers = [name for name in dir(client.lib) if name.startswith(("CUDA_", "CU_"))]
    assert len(numbers) >= 9
    lines += [f'_Static_assert({name} == {int(getattr(client.lib, name))}, "{name}");' for name in numbers]
    return "\n".join(lines) + "\n"


def cuda_folders() -> list[Path]:
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    return [DRIVER, *([toolkit] if (toolkit / "cuda.h").exists() else [])]


@pytest.mark.parametrize("folder", cuda_folders(), ids=str)
def test_the_declarations_without_cuda_h_agree_with_it(folder: Path) -> None:
    done = compile_c(f"#include <cuda.h>\n#include <stddef.h>\n{driver_types()}", "-isystem", str(folder))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", cuda_folders(), ids=str)
def test_the_driver_table_takes_the_drivers_functions(folder: Path) -> None:
    """With <cuda.h> the pointers have the types of the functions: what the compiler would warn of is an error here."""
    names = re.findall(r"\(\*(cu\w+)\)\(", (C_CLIENT / "mpsd/driver.h").read_text())
    assert len(names) == 13
    table = ", ".join(f".{name} = {name}" for name in names)
    source = f"#include <mpsd.h>\nstruct mpsd_driver table = {{ {table} }};\n"
    done = compile_c(source, "-isystem", str(folder), f"-I{C_CLIENT}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["native/binding/build.py", "clients/python/native/build.py"])
def test_what_building_needs_is_said_by_name(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / script)],
        env={"CC": "/no/such/cc", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "mpsd's C parts need a C compiler (gcc): no /no/such/cc. On Debian or Ubuntu: apt-get install gcc python3-dev\n"
    )


def test_python_reads_the_uvm_abi_from_the_header_alone() -> None:
    """The module does not repeat any of the driver's numbers or structures."""
    tree = ast.parse((ROOT / "mpsd/uvm/abi.py").read_text())
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.Import) and any(name.name == "struct" for name in node.names)
    ]
