"""Claims: which process works on which pending compaction. Claims save work; no safety rests on them."""
