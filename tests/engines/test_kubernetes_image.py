"""The image of the device plugin: the Containerfile, built by buildah on a minimal Debian 12, and its program on a node."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.kubelet import PLUGIN_VARIABLES
from tests.engines.node import PLUGIN, open_node
from tests.integration.process import wait_for
from tests.kmod.distributions import DEBIAN12, Unavailable, root_of

pytestmark = [pytest.mark.root, pytest.mark.deadline(300)]
BASE, IMAGE, CONTAINER = "localhost/debian:12-slim", "localhost/mpsd-kubernetes:0.1.0", "plugin"
LEFT_OUT = ("./usr/src", "./opt", "./proc/*", "./dev/*", "./sys/*")  # of the root that builds the kernel module
PIP = "[global]\nno-index = true\nfind-links = /needs\n"


class Buildah:
    """Guards that its images are apart from those of the machine."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.words = ["buildah", "--root", str(place / "root"), "--runroot", str(place / "run")]

    def run(self, *words: str | Path) -> str:
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"buildah {' '.join(map(str, words))}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout.strip()

    def import_root(self, root: Path) -> None:
        """Make BASE of a directory."""
        made = self.run("from", "scratch")
        place = self.run("mount", made)
        leave_out = " ".join(f"--exclude='{each}'" for each in LEFT_OUT)
        subprocess.run(f"tar -C {root} {leave_out} -c . | tar -C {place} -x", shell=True, check=True)
        self.run("commit", "--rm", "--quiet", made, BASE)

    def close(self) -> None:
        self.run("rm", "--all")
        subprocess.run(["umount", "--lazy", self._place / "root/overlay"], capture_output=True, check=False)
        shutil.rmtree(self._place, ignore_errors=True)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Yield a builder that has BASE; skip with the reason."""
    if os.geteuid() != 0:
        pytest.skip("needs uid 0")
    if not shutil.which("buildah"):
        pytest.skip("no buildah here: apt-get install buildah crun")
    made = Buildah(tmp_path_factory.mktemp("buildah"))
    try:
        made.import_root(root_of(DEBIAN12).path)
    except (Unavailable, RuntimeError) as exc:
        pytest.skip(f"no image to build on: {exc}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def entrypoint(buildah: Buildah, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the image's program; CONTAINER is made of the image. Its Python packages were fetched by this machine's pip."""
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(PLUGIN, context / "clients/kubernetes", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    (context / "dist").mkdir()
    shutil.copy(next(dist.glob("mpsd_client-*.whl")), context / "dist")
    needs, settings = tmp_path_factory.mktemp("needs"), context / "pip.conf"
    settings.write_text(PIP)
    words = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--disable-pip-version-check",
        "download",
        "--only-binary=:all:",
        "--python-version",
    ]
    words += ["3.11", "-d", str(needs), "--no-deps", "--require-hashes", "-r", str(PLUGIN / "constraints.txt")]
    subprocess.run(words, check=True)
    mounted = ["--volume", f"{needs}:/needs:ro", "--volume", f"{settings}:/etc/pip.conf:ro"]
    file = context / "clients/kubernetes/Containerfile"
    buildah.run("bud", "--pull-never", "--build-arg", f"BASE={BASE}", *mounted, "-f", file, "-t", IMAGE, context)
    buildah.run("from", "--pull-never", "--name", CONTAINER, IMAGE)
    return buildah.run("inspect", "--type", "image", "--format", "{{index .OCIv1.Config.Entrypoint 0}}", IMAGE)


def test_a_pod_has_its_part_by_the_plugin_of_the_image(programs: None, buildah: Buildah, entrypoint: str) -> None:
    """With the mounts, and without the capabilities, that the DaemonSet gives it."""
    with open_node() as node:
        kubelet, variables = node.kubelet, node.machine.variables
        words = [*buildah.words, "run", "--isolation", "chroot", "--cap-drop", "all"]
        words += ["--volume", f"{kubelet.plugins}:{kubelet.plugins}"]
        for place in (kubelet.pod_resources, node.machine.pipe):
            words += ["--volume", f"{place}:{place}:ro"]
        for name, value in {**PLUGIN_VARIABLES, "MPSD_SIM_DIR": variables["MPSD_SIM_DIR"]}.items():
            words += ["--env", f"{name}={value}"]
        node.start_plugin([*words, CONTAINER, "--", entrypoint])
        assert node.sms(kubelet.admit("a", 25)) == 32
        kubelet.remove("a")
        wait_for("the release", lambda: node.leases() == [])
