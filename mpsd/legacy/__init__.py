"""The vendor's command language: one line in, one answer out, over whatever implements `board.Board`.  docs/commands.md."""
