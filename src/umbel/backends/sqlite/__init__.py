"""SQLite files: any number of processes, one writer at a time, wake-ups by the write-ahead log."""
