"""Run one fault domain: start or adopt its vendor daemon, follow it while it lives, start it again when it dies."""

from collections.abc import Mapping

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.log_follower import follow_logs, keep_log_room
from mpsd.domains.pool import Pool
from mpsd.domains.vendor_control import EXPOSED
from mpsd.domains.vital_signs import why_stopped
from mpsd.errors import MpsdError, VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_SETTLED_SECONDS = 60.0  # a vendor daemon that lived this long starts with a short backoff when it dies
_COALESCE_SECONDS = 0.1  # changes come in bursts: one refresh after each is enough
_CONFIRM_SECONDS = 0.25  # between questions to a domain that may fault
_ADOPTION_SECONDS = 3.0  # by then a client that an earlier mpsd admitted is in its server's list


async def live(pool: Pool, domain: Domain) -> None:
    """Run the domain from STARTING to GONE; restart its vendor daemon with growing pauses."""
    pause = pool.settings.restart_seconds
    while True:
        began = trio.current_time()
        try:
            await _bring_up(pool, domain)
            await _serve(pool, domain)
        except (MpsdError, OSError) as exc:
            domain.trouble = str(exc)
            log.error("domain.failed", domain=domain.name, why=str(exc))
        if domain.state is DomainState.STOPPING or pool.is_stopping:
            break
        if domain.state is DomainState.RECYCLING or trio.current_time() - began > _SETTLED_SECONDS:  # the former: mpsd ended it
            pause = pool.settings.restart_seconds
        domain.state = DomainState.DEAD
        is_left = domain.control.is_alive()  # mpsd could not adopt it yet: its clients go on, with their key and limits
        if not is_left:
            _forget(pool, domain)
        pool.notify()
        log.warning("domain.restarting", domain=domain.name, in_seconds=pause)
        await trio.sleep(pause)
        if is_left and not domain.control.is_alive():
            _forget(pool, domain)
        pause = min(pause * 2, pool.settings.restart_max_seconds)
        domain.state = DomainState.STARTING
    domain.unseen.forget()
    await pool.remove(domain)


def _forget(pool: Pool, domain: Domain) -> None:
    """Forget all that was in the domain: its vendor daemon has ended.  A member without a context there has lost nothing."""
    left = domain.members.keys() - domain.connected
    domain.forget()
    for process in left:
        pool.member_forgotten.emit(process, domain)


async def _bring_up(pool: Pool, domain: Domain) -> None:
    is_new, placed = not domain.control.is_alive(), dict[ProcessId, int]()
    domain.is_adopted = not is_new
    if is_new:
        pool.store.forget_members(domain.name)  # of a daemon that has gone: its clients are those of no domain
        is_all = domain.gpus == pool.gpus
        visible = pool.settings.visible_devices if is_all else ",".join(domain.gpus)
        await domain.control.start(visible, pool.settings.vendor_options)
        domain.is_public = False
        pool.store.forget_baselines(domain.name)
        pool.begin_guarding(domain)
    else:
        domain.unseen.is_uncertain = True  # they may have channels, and an earlier mpsd may have had the same pid
        known = {process: uid for process, uid in pool.store.members(domain.name) if processes.is_alive(process)}
        for process in known.keys() & set(pool.store.left(domain.name)):
            del known[process]
            domain.admit(process)
            domain.attach(process)
            pool.watch(domain, process)
        placed.update(known)
        _take_over_clients(pool, domain, placed)  # before it answers: one that does not has them all the same
        if domain.control.process and (why := why_stopped(domain.control.process)):
            raise VendorFailed(why)  # at once: mpsd serves no client until each domain has answered, or failed
        await domain.sentinel.take_over()  # before its client could count as one
        domain.served_defaults = pool.defaults  # they were stored before its server got them
        if domain.control.is_exposed:
            log.error("domain.exposed", directory=str(domain.control.home.path),
                      why="an earlier mpsd left it so; it is replaced once it has no clients", effect=EXPOSED)  # fmt: skip
    try:
        if is_new:
            await keep_log_room(domain)
        if domain.state is not DomainState.CONTAINED:
            await domain.apply_defaults(pool.defaults)
        domain.mark_stale()
        await domain.refresh()
    except MpsdError:
        if is_new:
            await domain.control.kill()  # it has no clients yet, and the next one may be better
        raise
    if not is_new:
        domain.adopts_until = trio.current_time() + _ADOPTION_SECONDS
        listed = (each for pid, each in domain.admitted.items() if pid in domain.client_pids and processes.is_alive(each))
        _take_over_clients(pool, domain, {each: processes.real_uid(each.pid) for each in listed if each not in placed})
    domain.is_adopted = False
    if domain.state is DomainState.STARTING:
        domain.state = DomainState.READY
    domain.idle_since = trio.current_time()
    log.info("domain.ready", domain=domain.name, vendor_pid=domain.control.process and domain.control.process.pid)
    pool.notify()


def _take_over_clients(pool: Pool, domain: Domain, found: Mapping[ProcessId, int]) -> None:
    """Know again the clients of an earlier mpsd, with their users: those that it placed here, and those that a server lists.

    One of the former may have a channel to a server and no context yet: its next connection belongs here.
    """
    for process, uid in found.items():
        pool.take_over(domain, process, uid)


async def _serve(pool: Pool, domain: Domain) -> None:
    """Follow the logs and keep the view up to date while the vendor daemon lives."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_logs, domain, pool.store, pool.public, pool.hear)
        nursery.start_soon(_keep_fresh, pool, domain)
        if domain.guard.is_on:
            nursery.start_soon(domain.guard.hold_adopted, domain.control)
        await domain.control.wait_gone()
        nursery.cancel_scope.cancel()
    if domain.state is not DomainState.STOPPING:
        raise VendorFailed(f"the vendor's control daemon of domain {domain.name} died")


async def _keep_fresh(pool: Pool, domain: Domain) -> None:
    while True:
        suspect_seconds = domain.suspect_until - trio.current_time()
        is_suspect = suspect_seconds > 0
        pause = min(_CONFIRM_SECONDS, suspect_seconds + 0.01) if is_suspect else pool.settings.poll_seconds
        with trio.move_on_after(pause) as quiet:
            await domain.news.wait()
        if quiet.cancelled_caught:
            domain.mark_stale()
        await trio.sleep(0 if trio.current_time() < domain.suspect_until else _COALESCE_SECONDS)
        if domain.state is DomainState.STOPPING:
            return
        began = trio.current_time()
        try:
            await domain.refresh()
            await trio.sleep(trio.current_time() - began)  # on a busy machine a question takes long: leave it half of the time
        except VendorFailed as exc:
            log.warning("domain.silent", domain=domain.name, why=str(exc))
            await trio.sleep(pool.settings.restart_seconds)
        pool.notify()
