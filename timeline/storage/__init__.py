"""Access to the files of a table: the `Storage` contract, its implementations, and staged files on top of them.

The way in is `contract.Storage`. Nothing outside this room names one kind of storage; a new kind (an object
store, HDFS) is a file here.

May import: ground, storage/access, storage/hdfs.
"""
