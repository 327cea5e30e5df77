"""Services: the writer of each arena, its standbys, and the takeover by one of them (docs/services.md)."""
