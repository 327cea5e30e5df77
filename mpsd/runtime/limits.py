"""This process's own resource limits."""

import resource

import structlog

log = structlog.get_logger()


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process open `wanted` descriptors, or as many as it may; says so when that is fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    for limit in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, wanted), limit))
            break
        except (ValueError, OSError):
            continue
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now < wanted:
        log.warning("limits.descriptors", wanted=wanted, found=now, effect="fewer connections can be held at once")
