"""Claims: which process works on which pending compaction. Claims save work; no safety rests on them.

The way in is `claims`. A claim is a node in ZooKeeper, or a lock file; the doorbell announces a new plan.

May import: state, zookeeper; all of timeline.
"""
