"""The state of a compaction: does its decision stand, who completed it, does a Hudi compactor work on it?"""
