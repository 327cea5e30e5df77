"""What is remembered of the sentinel's self-test."""

from pathlib import Path

import pytest

from mpsd.check.containment_proof import FILE, Proof, find_proof, load_proofs, save_proof
from mpsd.errors import UnusablePath


def proof(why: str = "", driver: str = "580.1", gpu: str = "H200", kernel: str = "6.8") -> Proof:
    return Proof(driver, gpu, kernel, why, 1.0)


def find(place: Path, *gpus: str) -> Proof | None:
    return find_proof(place, "580.1", gpus, "6.8")


def test_it_counts_for_the_same_driver_gpu_and_kernel_alone(tmp_path: Path) -> None:
    assert find(tmp_path, "H200") is None
    for other in (proof(driver="590.1"), proof(gpu="H100"), proof(kernel="6.9")):
        save_proof(tmp_path, other)
        assert find(tmp_path, "H200") is None
    save_proof(tmp_path, proof())
    assert find(tmp_path, "H200") == proof()
    assert len(load_proofs(tmp_path)) == 4


def test_the_last_one_counts(tmp_path: Path) -> None:
    save_proof(tmp_path, proof("it hung"))
    save_proof(tmp_path, proof())
    assert load_proofs(tmp_path) == (proof(),)


def test_one_kind_of_gpu_that_failed_or_was_not_tested_decides(tmp_path: Path) -> None:
    save_proof(tmp_path, proof())
    assert find(tmp_path, "H200", "L4") is None
    save_proof(tmp_path, proof("it hung", gpu="L4"))
    assert find(tmp_path, "H200", "L4") == proof("it hung", gpu="L4")


@pytest.mark.parametrize("text", [b"", b"[{\"why\":\"\xff\"}]", b"[", b"{}", b'[{"driver": 1}]', b'[{"driver": "a"}]', b"\xff"])
def test_a_damaged_file_proves_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    assert load_proofs(tmp_path) == ()
    save_proof(tmp_path, proof())
    assert find(tmp_path, "H200") == proof()


def test_only_its_owner_reads_it_and_no_copy_is_left(tmp_path: Path) -> None:
    save_proof(tmp_path, proof())
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_where_it_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(UnusablePath):
        save_proof(tmp_path / "missing", proof())
