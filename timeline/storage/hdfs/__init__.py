"""How HDFS is reached: clients of name nodes, files as they are written and read, and a lease made of files.

The way in is `..hdfs_store`, which makes a `Storage` of it.

May import: ground.
"""
