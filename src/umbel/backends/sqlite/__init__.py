"""SQLite files: one writer at a time and any number of processes, woken by the write-ahead log."""
