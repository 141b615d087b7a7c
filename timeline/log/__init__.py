"""Log files: framing of blocks, their content to Arrow and back, and which blocks a reader counts."""
