"""The vendor's command language: one line in, one answer out, over an implementation of `board.Board`.  docs/commands.md."""
