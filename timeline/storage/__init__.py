"""Where a table's files lie: the `Storage` contract, the storages that keep it, and staged files on top of them.

The way in is `contract.Storage`. Nothing outside this room names a storage of one kind; a new kind (an object
store, HDFS) is a file here.

May import: ground.
"""
