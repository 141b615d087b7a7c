"""How an object store is found and entered: its URLs, and its options under all their names.

The way in is `storage_options.StorageOptions`. A kind of store is a `Cloud` of `object_url`; an option has one home,
`storage_options.SETTINGS`, and Hadoop's names are mapped to it in `hadoop_options`.

May import: ground.
"""
