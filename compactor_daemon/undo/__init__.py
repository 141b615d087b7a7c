"""Undoes writes, dead and completed ones (`rollback`, `restore`), and plans (`unschedule`, `replan`); savepoints."""
