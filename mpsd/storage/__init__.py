"""SQLite files: open, write all or nothing, checkpoint the write-ahead log."""
