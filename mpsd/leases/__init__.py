"""Leases and admissions while mpsd runs: acknowledged leases are on disk, and waiting entries are in a queue."""
