"""Takes completed writes back: the newest one (`rollback`), or all after an instant (`restore`)."""
