"""The timeline service."""
