"""The vault: arenas, who holds them, and the keeper that holds their memory.  Prose: docs/vault.md."""
