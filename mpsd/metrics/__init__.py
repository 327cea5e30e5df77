"""Numbers for Prometheus and a health check, over HTTP: of mpsd's own state alone, no vendor daemon is asked.

Prose: docs/monitoring.md.
"""
