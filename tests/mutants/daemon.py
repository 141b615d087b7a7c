# ruff: noqa: E501
"""What a daemon does next, what counts as a failure, and claims."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # What a daemon does next, and what counts as a failure.
    ("compactor_daemon/dispatch", "    if stop is not None:\n", "    if False:\n", "dispatch daemon"),
    ("compactor_daemon/dispatch", "    if table.busy:\n        return None\n", "", "dispatch"),
    ("compactor_daemon/dispatch", "turns[: max(0, slots)]", "turns[: max(1, slots)]", "dispatch"),
    ("compactor_daemon/dispatch", "(len(tables[n].running), tables[n].served)", "tables[n].served", "dispatch"),
    ("compactor_daemon/dispatch", "(len(tables[n].running), tables[n].served)", "len(tables[n].running)", "dispatch"),
    ("compactor_daemon/dispatch", " and table.available else None", " else None", "dispatch"),
    ("compactor_daemon/dispatch", "if t.available and t.is_startable(now_ms)]", "if t.is_startable(now_ms)]", "dispatch"),
    ("compactor_daemon/dispatch", "1 + 2 * len(table.claimed)", "1", "dispatch"),
    ("compactor_daemon/dispatch", "key=lambda p: (-p.log_bytes, p.instant)", "key=lambda p: (p.log_bytes, p.instant)", "dispatch"),
    ("compactor_daemon/dispatch", " and running == 0 and _at_rest(tables)", " and _at_rest(tables)", "dispatch"),
    ("compactor_daemon/dispatch", "later = [m for m in moments if m > now_ms]", "later = []", "dispatch"),
    ("compactor_daemon/table_state", "if p.instant not in self.claimed\n            and", "if", "dispatch"),
    ("compactor_daemon/table_state", "            and p.instant not in self.running\n", "", "dispatch"),
    ("compactor_daemon/table_state", "            and self.postponed.get(p.instant, 0) <= now_ms\n", "", "dispatch"),
    ("compactor_daemon/table_state", "claimed=claimed - self.running,", "claimed=claimed,", "daemon dispatch"),
    ("compactor_daemon/table_state", "pending=(), busy=False", "busy=False", "daemon fleet"),
    # What waits for writes is not at work.
    ("compactor_daemon/status", 'return ("waiting", _WAITS_FOR_WRITES) if is_waiting else ("running", None)', 'return "running", None', "status"),
    ("compactor_daemon/work_note", '{"waiting": 0, **(note or {})}', "{**(note or {})}", "unit/records"),
    ("compactor_daemon/compactor", "                noted(waiting=1)\n", "", "daemon_barrier"),
    ("compactor_daemon/daemon", "        self._resume(table, instant)\n        state =", "        state =", "daemon"),
    ("compactor_daemon/daemon", "        self._observer.put_aside(table)\n", "", "daemon"),
    ("compactor_daemon/failures", "if isinstance(error, (LedgerError, StalePlanError)):", "if False:", "failures fleet"),
    ("compactor_daemon/failures", "isinstance(error, TableChangedError) or not", "not", "failures"),
    ("compactor_daemon/failures", "len(failures) > options.retries", "len(failures) >= options.retries", "failures"),
    ("compactor_daemon/failures", "any(f.park for f in failures) or ", "", "failures"),
    ("compactor_daemon/failures", "_DOUBLINGS_MAX), options.backoff_max_s)", "_DOUBLINGS_MAX), 1e9)", "failures"),
    ("compactor_daemon/failures", "return sorted(int(e.name)", "return list(int(e.name)", "failures"),
    ("compactor_daemon/daemon", "how is Stop.HAND_OVER or instant in", "instant in", "daemon"),
    ("compactor_daemon/daemon", "how is Stop.HAND_OVER or instant in self._states[table].aside", "how is Stop.HAND_OVER", "daemon"),
    ("compactor_daemon/dispatch", "free - len(resumed)", "free", "dispatch"),
    ("compactor_daemon/table_state", "len(self.running) - len(self.aside)", "len(self.running)", "daemon dispatch"),
    ("compactor_daemon/daemon", "        if served.is_done(instant):", "        if False:", "fleet daemon"),
    ("compactor_daemon/daemon", "            if held.lost:\n", "            if False:\n", "daemon"),
    ("compactor_daemon/daemon", "        if weight is Weight.NOTHING:\n            return\n", "", "daemon"),
    ("compactor_daemon/daemon", "        finally:\n            held.release()\n", "        finally:\n            pass\n", "daemon"),
    ("compactor_daemon/daemon", "if isinstance(error, SparkError) and self._spark_is_gone():", "if False:", "daemon"),
    ("compactor_daemon/served_table", "timeline.instants != self._refused or", "True or", "fleet"),
    ("compactor_daemon/served_table", "except (MalformedError, UnsupportedError, MissingFileError):", "except MissingFileError:", "stuck"),
    ("compactor_daemon/serve", "    for table in tables.values():\n        check_keepable(table, moves_rows=False)\n", "", "fleet"),
    # Spark on a cluster.
    ("compactor_daemon/spark_start", '"spark.dynamicAllocation.enabled": "true"', '"spark.dynamicAllocation.enabled": "false"', "spark_cluster spark_start"),
    ("compactor_daemon/execute", "except Exception as error:  # in the words", "except ZeroDivisionError as error:  # in the words", "spark_cluster"),
    # Claims.
    ("compactor_daemon/zookeeper_claims", "                if not self._is_leftover(instant):\n                    return None\n", "                pass\n", "claims fleet"),
)  # fmt: skip
