"""What is waited for, in a process that was forked."""

from __future__ import annotations

import os
import signal
import warnings

from phantombase.timeline import reachable


def test_a_forked_process_waits_for_nothing_of_the_other() -> None:
    """A thread that does not exist in it may have held the lock, or waited."""
    teller, code = reachable._teller, 1
    with warnings.catch_warnings(), reachable.waiting("of the other"), teller._lock:
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
        if not child:
            try:
                signal.alarm(60)
                with reachable.waiting("its own"):
                    code = 0 if len(teller._waits) == 1 else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
