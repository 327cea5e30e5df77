"""Decisions about fault domains: placement, spares, the vendor's limits and log lines.  Pure."""
