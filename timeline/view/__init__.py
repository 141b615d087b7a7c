"""The file-system view: which files make a file slice, and which slices a reader merges."""
