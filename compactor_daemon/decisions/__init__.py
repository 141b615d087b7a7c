"""The state of a compaction: is its decision valid, who completed it, is a Hudi executor at work on it?"""
