"""The vault: arenas, their holders, and the keepers of their memory.  Prose: docs/vault.md."""
