"""kmod/apply on minimal trees: it applies all hooks, or changes nothing and reports the reason."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.machine import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("spatch"), reason="Coccinelle is not here")
VERSION = "550.1.2"
# What the hooks look for, in functions that do nothing else.
REPLAYABLE = """\
#include "uvm_tools.h"
static NV_STATUS cancel_fault_precise_va(uvm_fault_buffer_entry_t *entry, uvm_fault_cancel_va_mode_t mode)
{
    uvm_gpu_va_space_t *gpu_va_space;
    gpu_va_space = find(entry);
    uvm_tools_record_gpu_fatal_fault(entry);
    return push(entry, mode);
}
static NV_STATUS cancel_faults_all(batch_t *batch)
{
    int i;
    for (i = 0; i < batch->count; i++) {
        uvm_fault_buffer_entry_t *entry = batch->entries[i];
        uvm_fault_cancel_va_mode_t mode = entry->mode;
        status = cancel_fault_precise_va(entry, mode);
    }
    return status;
}
"""
NON_REPLAYABLE = """\
#include "uvm_tools.h"
static NV_STATUS service(uvm_fault_buffer_entry_t *entry, int other)
{
    NV_STATUS status = serve(entry);
    if (status == NV_OK && !entry->is_fatal) {
        status = clear_faulted_on_gpu(entry, other);
        done();
    }
    return status;
}
"""
VA_SPACE = """\
#include "uvm_va_space.h"
static void destroy_gpu_va_space(uvm_gpu_va_space_t *gpu_va_space)
{
    unset(gpu_va_space);
    if (gpu_va_space->page_tables.root)
        uvm_page_tree_deinit(&gpu_va_space->page_tables);
}
"""
USER_CHANNEL = """\
#include "uvm_va_space.h"
void uvm_user_channel_destroy_detached(uvm_user_channel_t *user_channel)
{
    uvm_tracker_wait_deinit(&user_channel->clear_faulted_tracker);
    give_back(user_channel);
}
"""
MODULE = """\
#include "uvm_va_space.h"
static int uvm_init(void)
{
    int ret;
    ret = uvm_tools_init(base);
    if (ret != 0) {
        goto error;
    }
    return 0;
error:
    return ret;
}
static void uvm_exit(void)
{
    uvm_tools_exit();
    uvm_global_exit();
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """In the layout of DKMS."""
    texts = {
        "Kbuild": f'ccflags-y += -DNV_VERSION_STRING=\\"{VERSION}\\"\n',
        "nvidia/nv.c": 'MODULE_LICENSE("Dual MIT/GPL");\n',
        "nvidia-uvm/uvm_gpu_replayable_faults.c": REPLAYABLE,
        "nvidia-uvm/uvm_gpu_non_replayable_faults.c": NON_REPLAYABLE,
        "nvidia-uvm/uvm_user_channel.c": USER_CHANNEL,
        "nvidia-uvm/uvm_va_space.c": VA_SPACE,
        "nvidia-uvm/uvm.c": MODULE,
        "nvidia-uvm/nvidia-uvm-sources.Kbuild": "NVIDIA_UVM_SOURCES += nvidia-uvm/uvm.c\n",
    }
    for name, text in texts.items():
        write(tmp_path / "tree" / name, text)
    return tmp_path / "tree"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def apply(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [ROOT / "kmod/apply", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def refused(tree: Path, *words: str) -> str:
    """Why; and nothing has changed."""
    before = contents(tree)
    done = apply(*words, tree)
    assert (done.returncode, done.stdout) == (1, "")
    assert contents(tree) == before
    return done.stderr


def test_seven_calls_and_their_includes(tree: Path) -> None:
    done = apply(tree)
    assert (done.returncode, done.stderr) == (0, "")
    uvm = tree / "nvidia-uvm"
    assert "    if (uvm_mpsd_absorb(gpu_va_space, entry))\n        return NV_OK;\n    uvm_tools_record" in read(
        uvm, "uvm_gpu_replayable_faults.c"
    )
    resumed = (
        "if (status == NV_OK && entry->is_fatal && uvm_mpsd_absorb(gpu_va_space, entry))\n        entry->is_fatal = false;"
    )
    assert resumed in read(uvm, "uvm_gpu_non_replayable_faults.c")
    assert "uvm_mpsd_release(gpu_va_space);\n    if (gpu_va_space->page_tables.root)" in read(uvm, "uvm_va_space.c")
    assert "uvm_mpsd_init();\n    return 0;" in read(uvm, "uvm.c")
    assert "uvm_global_exit();\n    uvm_mpsd_exit();" in read(uvm, "uvm.c")
    assert "uvm_mpsd_channel_goes(user_channel);\n    uvm_tracker_wait" in read(uvm, "uvm_user_channel.c")
    cancelled = "uvm_mpsd_unproven(entry);\n        status = cancel_fault_precise_va(entry, mode);"
    assert cancelled in read(uvm, "uvm_gpu_replayable_faults.c")
    assert "uvm_mpsd.Kbuild" in read(uvm, "nvidia-uvm-sources.Kbuild")
    assert (uvm / "mpsd_fault.h").read_text() == (ROOT / "kmod/include/mpsd_fault.h").read_text()
    assert {path.name for path in (ROOT / "kmod").glob("uvm_mpsd*")} <= {path.name for path in uvm.iterdir()}


def read(uvm: Path, name: str) -> str:
    return (uvm / name).read_text()


def test_it_comes_out_again(tree: Path) -> None:
    before = contents(tree)
    assert apply(tree).returncode == 0
    assert apply("--remove", tree).returncode == 0
    assert contents(tree) == before


def test_nvidias_own_layout(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    tree.rename(tmp_path / "repository/kernel-open")
    assert apply(tmp_path / "repository").returncode == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("nvidia-uvm/uvm_gpu_replayable_faults.c", "cancel_fault_precise_va", "cancel_fault", "fits 0 places"),
        ("nvidia-uvm/uvm_gpu_replayable_faults.c", "    gpu_va_space = find(entry);\n", "", "fits 0 places"),
        ("nvidia-uvm/uvm_gpu_non_replayable_faults.c", "!entry->is_fatal", "entry->is_virtual", "fits 0 places"),
        ("nvidia-uvm/uvm_va_space.c", "destroy_gpu_va_space", "free_gpu_va_space", "uvm_mpsd_release fits 0 places"),
        ("nvidia-uvm/uvm.c", "uvm_global_exit();", "uvm_exit_global();", "uvm_mpsd_exit fits 0 places"),
        (
            "nvidia-uvm/uvm.c",
            "    return 0;\n",
            "    if (more()) goto error;\n    return 0;\n",
            "can fail after uvm_mpsd_init()",
        ),
        ("Kbuild", VERSION, "530.41.03", "535 is the oldest"),
        ("Kbuild", VERSION, "999.1", "was never looked at"),
        ("Kbuild", "NV_VERSION_STRING", "NV_OTHER", "does not say a driver version"),
        ("nvidia/nv.c", "Dual MIT/GPL", "NVIDIA", "not the open flavour"),
    ],
)
def test_what_does_not_fit_is_refused_whole(tree: Path, name: str, old: str, new: str, why: str) -> None:
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new))
    assert why in refused(tree)


def test_a_function_that_is_there_twice_is_refused(tree: Path) -> None:
    write(tree / "nvidia-uvm/uvm_gpu_replayable_faults.c", REPLAYABLE * 2)
    assert "fits 2 places" in refused(tree)


def test_a_file_that_is_missing(tree: Path) -> None:
    (tree / "nvidia-uvm/uvm.c").unlink()
    assert "uvm.c is missing" in refused(tree)


def test_twice_is_refused(tree: Path) -> None:
    assert apply(tree).returncode == 0
    assert "already" in refused(tree)


def test_an_untried_branch_can_be_asked_for(tree: Path) -> None:
    write(tree / "Kbuild", 'ccflags-y += -DNV_VERSION_STRING=\\"999.1\\"\n')
    assert apply("--untried", tree).returncode == 0


def test_what_is_no_tree_is_told_apart(tmp_path: Path) -> None:
    assert "neither /usr/src/nvidia-VERSION nor" in refused(tmp_path)
    write(tmp_path / "kernel/nvidia-uvm/uvm.c", "")
    assert "proprietary flavour alone" in refused(tmp_path)
    write(tmp_path / "nvidia-open-kernel.tar.xz", "")
    assert "unpack nvidia-open-kernel.tar.xz" in refused(tmp_path)
    assert "no such folder" in apply(tmp_path / "nothing").stderr


def test_our_files_are_taken_by_content_and_not_by_date(tmp_path: Path) -> None:
    """What was built may be newer than the file that replaces it; what is the same is not compiled again."""
    ours, uvm = tmp_path / "kmod", tmp_path / "nvidia-uvm"
    for name, old, new in (("uvm_mpsd.c", "old", "new"), ("uvm_mpsd_ring.c", "same", "same")):
        write(uvm / name, old)
        write(ours / name, new)
        os.utime(ours / name, (1, 1))
    write(ours / "include/mpsd_fault.h", "header")
    before = (uvm / "uvm_mpsd_ring.c").stat().st_mtime_ns
    words = ["bash", "-ec", f'. {ROOT}/kmod/tree.sh; tree_take_ours "$1" "$2"', "test", ours, uvm]
    subprocess.run(words, check=True, timeout=60)
    assert (read(uvm, "uvm_mpsd.c"), read(uvm, "mpsd_fault.h")) == ("new", "header")
    assert (uvm / "uvm_mpsd_ring.c").stat().st_mtime_ns == before
