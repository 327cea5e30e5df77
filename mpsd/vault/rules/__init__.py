"""Decisions about arenas: usage, contents, eviction, windows.  Pure."""
