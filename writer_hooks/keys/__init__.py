"""Record keys and partition paths of new rows, as Hudi's key generators make them."""
