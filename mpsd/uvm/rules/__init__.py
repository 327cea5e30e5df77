"""Decisions about a client's addresses: its mappings, and where a shield may be.  Pure."""
