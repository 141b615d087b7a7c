"""Terminal code that all commands share: the error boundary, settings, help, output, progress, tables, logging."""
