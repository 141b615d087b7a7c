"""The `compactor-daemon` command."""
