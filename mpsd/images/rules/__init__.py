"""Decisions about images: the manifest's format, hashes, retention, export.  Pure."""
