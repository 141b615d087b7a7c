"""What all commands share at the terminal: the error boundary, output, progress, tables, logging.

May import: format, ground.
"""
