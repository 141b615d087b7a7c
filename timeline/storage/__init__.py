"""Access to the files of a table: the `Storage` contract, its implementations, and staged files on top of them."""
