"""The one place that builds the sentinels, and connects them with the domains and the relay."""

import json
import os
from functools import partial

import structlog
import trio

from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.check.containment_proof import find_proof
from mpsd.config import paths
from mpsd.domains.pool import Pool
from mpsd.errors import VendorFailed
from mpsd.gpu import nvml
from mpsd.host.program_run import run_program
from mpsd.host.programs import interpreter
from mpsd.sentinel.sentinels import Sentinels
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_TEST_SECONDS = 180.0  # each of its steps has a deadline


def join_sentinels(found: Startup, pool: Pool) -> Sentinels | None:
    """Return the sentinels of the pool's domains; None where clients do not come through mpsd."""
    wanted = settings.sentinel(found.config)
    if not found.is_privileged:
        if wanted.is_on:
            log.error("sentinel.absent", why="without root mpsd cannot start one as each client's user, nor before its context")
        return None
    is_tested = wanted.is_on and found.config.sentinel.self_test
    sentinels = Sentinels(pool, wanted, partial(_prove, found) if is_tested else None)
    pool.sentinel_of = sentinels.protect
    return sentinels


async def _prove(found: Startup) -> str:
    """Return why a sentinel did not contain an exception on these GPUs; "": it did.  A proof that failed is tried again.

    Raise VendorFailed or OSError if the test could not be made.
    """
    driver = await run_in_thread(nvml.read_driver, paths.nvml_library(found.config), abandon_on_cancel=True)
    names = sorted({device.name for device in found.devices})
    find = partial(find_proof, found.claim.state_directory, driver, names, os.uname().release)
    known = await run_in_thread(find)
    if known is None or not known.is_good:
        log.info("sentinel.test", gpus=names, driver=driver)
        before, said = known, await _run_test(found)
        known = await run_in_thread(find)
        if known is None or known == before:
            raise VendorFailed(said or "it did not finish")
    return known.why


async def _run_test(found: Startup) -> str:
    """Run `mpsd check --gpu`; return what it found, of a GPU that it could not test."""
    file, overrides = found.invocation.config_file, found.invocation.overrides
    options = [*(["--config", file] if file else []), *(["--backend", overrides["backend"]] if "backend" in overrides else [])]
    command = [str(interpreter()), "-m", "mpsd", "check", "--gpu", "--json", *options]
    with trio.move_on_after(_TEST_SECONDS):
        _, said = await run_program(found.inspector, command, b"", found.environ)
        try:
            return str(json.loads(said)["findings"][-1]["found"])
        except (ValueError, LookupError):
            raise VendorFailed(f"mpsd check --gpu reported {said[-200:].decode(errors='replace')!r}") from None
    return f"it took more than {_TEST_SECONDS:g} s"
