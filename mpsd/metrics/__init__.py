"""Numbers for Prometheus and a health check, over HTTP: only from mpsd's own state, without asking a vendor daemon.

Prose: docs/monitoring.md.
"""
