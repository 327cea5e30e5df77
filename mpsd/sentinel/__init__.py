"""The sentinels: one stopped client of mpsd's own for each GPU of a domain, which lets SM exceptions be contained."""
