"""The protocol of mpsd.sock, for schedulers: callers, their permissions, methods and events.  Prose: docs/protocol.md."""
