# ruff: noqa: E501
"""What a daemon does next, what counts as a failure, and claims."""

from __future__ import annotations

from tests.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # What a daemon does next, and what counts as a failure.
    ("compactor_daemon/daemon/dispatch", "    if stop is not None:\n", "    if False:\n", "daemon/dispatch fleet/daemon"),
    ("compactor_daemon/daemon/dispatch", "    if table.busy:\n        return None\n", "", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "turns[: max(0, slots)]", "turns[: max(1, slots)]", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "(len(tables[n].running), tables[n].served)", "tables[n].served", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "(len(tables[n].running), tables[n].served)", "len(tables[n].running)", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", " and table.available else None", " else None", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "if t.available and t.is_startable(now_ms)]", "if t.is_startable(now_ms)]", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "1 + 2 * len(table.claimed)", "1", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "key=lambda p: (-p.log_bytes, p.instant)", "key=lambda p: (p.log_bytes, p.instant)", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", " and running == 0 and _at_rest(tables)", " and _at_rest(tables)", "daemon/dispatch"),
    ("compactor_daemon/daemon/dispatch", "later = [m for m in moments if m > now_ms]", "later = []", "daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "if p.instant not in self.claimed\n            and", "if", "daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "            and p.instant not in self.running\n", "", "daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "            and self.postponed.get(p.instant, 0) <= now_ms\n", "", "daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "claimed=claimed - self.running,", "claimed=claimed,", "fleet/daemon daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "pending=(), busy=False", "busy=False", "fleet/daemon fleet/fleet"),
    # What waits for writes is not at work.
    ("compactor_daemon/status/status", 'return ("waiting", _WAITS_FOR_WRITES) if is_waiting else ("running", None)', 'return "running", None', "fleet/status"),
    ("compactor_daemon/state/work_note", '{"waiting": 0, **(note or {})}', "{**(note or {})}", "records/records"),
    ("compactor_daemon/attempt/compact_instant", "                noted(waiting=1)\n", "", "fleet/daemon_barrier"),
    ("compactor_daemon/daemon/loop", "        self._resume(table, instant)\n        state =", "        state =", "fleet/daemon"),
    ("compactor_daemon/daemon/loop", "        self._observer.put_aside(table)\n", "", "fleet/daemon"),
    ("compactor_daemon/state/failures", "if isinstance(error, (LedgerError, StalePlanError)):", "if False:", "state/failures fleet/fleet"),
    ("compactor_daemon/state/failures", "isinstance(error, TableChangedError) or not", "not", "state/failures"),
    ("compactor_daemon/state/failures", "len(failures) > options.retries", "len(failures) >= options.retries", "state/failures"),
    ("compactor_daemon/state/failures", "any(f.park for f in failures) or ", "", "state/failures"),
    ("compactor_daemon/state/failures", "_DOUBLINGS_MAX), options.backoff_max_s)", "_DOUBLINGS_MAX), 1e9)", "state/failures"),
    ("compactor_daemon/state/failures", "return sorted(int(e.name)", "return list(int(e.name)", "state/failures"),
    ("compactor_daemon/daemon/loop", "how is Stop.HAND_OVER or instant in", "instant in", "fleet/daemon"),
    ("compactor_daemon/daemon/loop", "how is Stop.HAND_OVER or instant in self._states[table].aside", "how is Stop.HAND_OVER", "fleet/daemon"),
    ("compactor_daemon/daemon/dispatch", "free - len(resumed)", "free", "daemon/dispatch"),
    ("compactor_daemon/daemon/table_state", "len(self.running) - len(self.aside)", "len(self.running)", "fleet/daemon daemon/dispatch"),
    ("compactor_daemon/daemon/loop", "        if served.is_done(instant):", "        if False:", "fleet/fleet fleet/daemon"),
    ("compactor_daemon/daemon/loop", "            if held.lost:\n", "            if False:\n", "fleet/daemon"),
    ("compactor_daemon/daemon/loop", "        if weight is Weight.NOTHING:\n            return\n", "", "fleet/daemon"),
    ("compactor_daemon/daemon/loop", "        finally:\n            held.release()\n", "        finally:\n            pass\n", "fleet/daemon"),
    ("compactor_daemon/daemon/loop", "if isinstance(error, SparkError) and self._spark_is_gone():", "if False:", "fleet/daemon"),
    ("compactor_daemon/daemon/table_on_storage", "timeline.instants != self._refused or", "True or", "fleet/fleet"),
    ("compactor_daemon/daemon/table_on_storage", "except (MalformedError, UnsupportedError, MissingFileError):", "except MissingFileError:", "attempt/stuck"),
    ("compactor_daemon/daemon/assemble", "    for table in tables.values():\n        check_keepable(table, moves_rows=False)\n", "", "fleet/fleet"),
    # Spark on a cluster.
    ("compactor_daemon/execution/spark_session", '"spark.dynamicAllocation.enabled": "true"', '"spark.dynamicAllocation.enabled": "false"', "fleet/spark_cluster fleet/spark_start"),
    ("compactor_daemon/execution/runners", "except Exception as error:  # an error of a socket", "except ZeroDivisionError as error:  # an error of a socket", "fleet/spark_cluster"),
    # Claims on storage.
    ("compactor_daemon/claims/table_claims", "        return not self._is_held()\n", "        return False\n", "fleet/claims_on_storage"),
    ("compactor_daemon/claims/table_claims", "                if not shared.instants:\n", "                if False:\n", "fleet/claims_on_storage"),
    ("compactor_daemon/claims/lock_file", "if table.storage.is_file_system else f\"{instant_folder(instant)}/claim\"", "if True else f\"{instant_folder(instant)}/claim\"", "fleet/claims_on_storage"),
    ("compactor_daemon/claims/lock_file", "return nullcontext() if table.storage.is_file_system else claim(table, instant, wait_s)", "return nullcontext()", "fleet/claims_on_storage"),
    ("compactor_daemon/run/pending", " and not isinstance(error, ClaimedError)", "", "fleet/claims_on_storage"),
    # Claims.
    ("compactor_daemon/claims/zookeeper_claims", "                if not self._is_leftover(instant):\n                    return None\n", "                pass\n", "fleet/claims fleet/fleet"),
)  # fmt: skip
