"""Who works on which pending compaction. Claims save work; no safety rests on them.

The way in is `claims`; ZooKeeper, a lock file and the doorbell are ways to hold and to announce them.

May import: state, zookeeper; all of timeline.
"""
