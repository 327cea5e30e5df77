"""Leases and admissions while mpsd runs: what was acknowledged is on disk, and what waits is in a queue."""
