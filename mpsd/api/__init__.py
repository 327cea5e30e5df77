"""The schedulers' socket, mpsd.sock: who is there, what they may do, what they are told.  Prose: docs/protocol.md."""
