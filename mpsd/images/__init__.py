"""Images of arenas: complete or absent, each block stored once.  Prose: docs/images.md."""
