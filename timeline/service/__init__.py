"""The timeline service: answers about tables over HTTP, for Hudi's remote file-system view."""
