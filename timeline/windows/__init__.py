"""Windows of time on a table: its state at a time, the writes between two times, and how far back both go."""
