"""Terminal code that all commands share: the error boundary, output, progress, tables, logging.

May import: format, ground.
"""
