"""Signals: SIGTERM and SIGINT end mpsd as configured; SIGHUP reloads the configuration and reopens the logs."""

import os
import signal

import structlog
from msgspec.structs import replace

from mpsd.api.audit import Audit
from mpsd.app import settings
from mpsd.app.daemon import Daemon
from mpsd.app.descriptor_limit import fit_again
from mpsd.config.loading import Invocation, changed
from mpsd.config.options import Config
from mpsd.domains.public_log import PublicLog
from mpsd.errors import BadConfiguration
from mpsd.host.rules.descriptor_budget import Budget
from mpsd.host.user_database import AdminGroup
from mpsd.log.journal import Journal

log = structlog.get_logger()


class Signals:
    """Guards that an invalid configuration changes nothing."""

    def __init__(
        self,
        config: Config,
        invocation: Invocation,
        journal: Journal,
        public: PublicLog,
        audit: Audit,
        budget: Budget,
        admin_group: AdminGroup,
    ) -> None:
        self._config = config
        self._invocation = invocation
        self._journal = journal
        self._public = public
        self._audit = audit
        self._budget = budget
        self._admin_group = admin_group

    async def take(self, daemon: Daemon, number: int) -> None:
        if number == signal.SIGHUP:
            await self._reload(daemon)
        elif self._config.stop.on_sigterm == "leave":
            daemon.stop.set()
        else:
            daemon.notifier.stopping()
            seconds = self._config.stop.drain_seconds if self._config.stop.on_sigterm == "drain" else 0.0
            daemon.begin_quit(seconds)

    async def _reload(self, daemon: Daemon) -> None:
        daemon.notifier.reloading()
        self._public.reopen()
        try:
            new = fit_again(self._invocation.load(os.environ))
            settings.check_enforceable(new, is_privileged=daemon.relayed is not None)
        except BadConfiguration as exc:
            log.error("reload.refused", why=str(exc), kept="the configuration in force")
        else:
            live, restart = changed(self._config, new)
            self._apply(daemon, new)
            await self._admin_group.rename(new.ui.admin_group)
            log.info("reload.done", changed=live, need_a_restart=restart)
        daemon.notifier.ready()

    def _apply(self, daemon: Daemon, new: Config) -> None:
        self._config = new
        self._journal.configure(new.log)
        self._audit.configure(new.log)
        old = daemon.pool.settings
        wanted = settings.pool(new, self._invocation, old.home.parent)
        kept = {"visible_devices": old.visible_devices, "reserved_per_gpu": old.reserved_per_gpu}  # those need a restart
        daemon.pool.settings = replace(wanted, **kept)
        for domain in daemon.pool.domains.values():
            domain.capacity = daemon.pool.settings.capacity(domain.gpus)
        daemon.sessions.settings = settings.sessions(new)
        daemon.sessions.tell_suppressed()
        daemon.api.settings = settings.api(new)
        if daemon.relayed is not None:
            conversations = daemon.relayed[0].conversations  # its other settings need a restart
            trusts_containers = settings.relay(new, may_impersonate=True).trusts_containers
            conversations.settings = replace(conversations.settings, trusts_containers=trusts_containers)
        daemon.faults.incidents.configure(settings.faults(new))
        daemon.faults.kmod_policy.configure(settings.kmod_mode(new))
        daemon.vault.configure(settings.vault(new))
        daemon.failover.configure(settings.failover(new))
        daemon.book.configure(settings.admission(new, self._budget))
        daemon.pool.notify()
