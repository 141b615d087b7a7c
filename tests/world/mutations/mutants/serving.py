# ruff: noqa: E501
"""The timeline service: synchronisation, answers, markers."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_SYNC, _ROUTES, _STATE = (
    "timeline/service/states/synchronisation",
    "timeline/service/routes",
    "timeline/service/states/table_state",
)
_ACCESS = "timeline/service/access"
_TOUCHED = "timeline/service/states/loading"
_MARKERS = "timeline/service/marker_app"
_QUICK, _REPEATS, _APP = "timeline/service/wire/quick_http", "timeline/service/app", "timeline/service/app"

MUTANTS: tuple[Mutant, ...] = (
    (_SYNC, "i.completed or i.action == \"compaction\")", "i.completed)", "touched"),
    (_SYNC, "client.last in times or client.last < times[0])", "True)", "touched"),
    (_SYNC, "forms.append(known[:-1])", "pass", "touched"),
    (_SYNC, "(\"deltacommit\", \"savepoint\")", "(\"deltacommit\", \"savepoint\", \"clean\", \"replacecommit\")", "touched"),
    (_SYNC, "if before is None and not (instant.completed and ", "if before is None and instant.completed and not (", "touched"),
    (_SYNC, "key in now or (i.completed and i.requested_time < start)", "True", "touched"),
    (_ROUTES, "q.slices(_upto(_without_empty(g), bound)", "q.slices(_upto(g, bound)", "recorded_answers"),
    (_ROUTES, "for g in live(partition, partition.groups, bound) if pending", "for g in live(partition, partition.groups) if pending", "recorded_answers"),
    (_ROUTES, "return replace(group, slices=group.slices[:-1]) if begun else group", "return group", "moving_table"),
    (_ROUTES, "q.with_pending.with_logs, bound))", "q.partition.groups, bound))", "moving_table"),
    (_STATE, "                found[name.file_id, name.instant] = entry", "                found[entry.name] = entry", "moving_table"),
    ("timeline/service/served_table", "    if running is not None and not running.done():\n            await asyncio.wait([running])\n", "    pass\n", "moving_table"),
    ("timeline/service/served_tables", "os.path.realpath(path)} if _is_local", "path} if _is_local", "moving_table"),
    ("timeline/service/app", "part in (\"\", \".\", \"..\", HOODIE) or", "part in (\"\", \".\") or", "moving_table"),
    (_MARKERS, "    if \"://\" in base:\n", "    if True:\n", "service/markers"),
    ("timeline/service/served_table", "            self._held.pop()  #", "            pass  #", "moving_table"),
    (_QUICK, "        if not is_first or self.flow", "        if self.flow", "repeats"),
    (_QUICK, " or not _UNDERSTOOD.issuperset(given)", "", "repeats"),
    (_QUICK, " or not self._is_plain_get()", "", "repeats"),
    (_REPEATS, "table.gone or ", "", "repeats"),
    (_REPEATS, " or table.newest is not known.held", "", "repeats"),
    (_REPEATS, "            self._by_target.clear()\n", "            pass\n", "repeats"),
    (_APP, " or self._access.refusal(given)", "", "repeats"),
    (_APP, " or not self._access.is_hudi_client(client)", "", "repeats"),
    ("timeline/service/app", "    newest = await table.load() if route.looks else None\n", "    newest = None\n", "moving_table"),
    ("timeline/service/app", "if method == \"GET\" and \"pretty\" not in given and", "if \"pretty\" not in given and", "repeats"),
    (_ACCESS, "        if origin is not None and", "        if False and", "odd_requests"),
    (_ACCESS, "        if not self._is_known_host(host):", "        if False:", "odd_requests"),
    (_ACCESS, "_is_in(name, _LOOPBACK) if self.is_local else _is_address(name)", "_is_address(name)", "access"),
    (_ACCESS, "if self.token is None and not self.is_local:", "if False:", "access"),
    (_ACCESS, "return signed and", "return", "access"),
    (_ACCESS, " and now_s < int(until)", "", "access"),
    (_ACCESS, "if bearer is None else self.is_token(bearer)", "if bearer is None else True", "access"),
    (_ACCESS, "        if not hmac.compare_digest(proof.encode(), self.proof(headers).encode()):\n", "        if not proof:\n", "table_states"),
    (_ACCESS, "self._signed(f\"form {_cookie(headers)}\")", "self._signed(\"form\")", "table_states"),
    (_ACCESS, "headers.get(b\"origin\") is None or", "", "table_states"),
    (_ACCESS, " or headers.get(b\"sec-fetch-site\", b\"same-origin\") != b\"same-origin\"", "", "table_states"),
    ("timeline/dashboard/action_app", "order.instant is not None and order.instant not in pending", "False", "table_states"),
    ("timeline/dashboard/runner", "        if path in self._running:\n", "        if False:\n", "table_states"),
    ("timeline/locks/seen", "until + _DRIFT_MS < now_ms", "until < now_ms", "table_states"),
    ("timeline/service/app", "            if not self._access.is_hudi_client(client[0] if client else None):\n", "            if False:\n", "access"),
    (_TOUCHED, "named += [_names(new[i]) for i in new.keys() - old.keys()]", "pass", "touched"),
    (_TOUCHED, "named = [_names(old[i], gone=True) for i in gone if not _archived(i, timeline)]", "named = []", "touched"),
    (_TOUCHED, "    named += [_back(before, old[i]) for i in gone]\n", "", "touched"),
    (_TOUCHED, "not moved.isdisjoint(f.times) or passed", "passed", "touched"),
    (_TOUCHED, "isdisjoint(f.times) or passed.has_any(f))", "isdisjoint(f.times))", "touched"),
    (_TOUCHED, "and (timed or not instant.is_write)", "", "touched"),
    (_TOUCHED, "    if None in named:\n        return None\n", "", "touched"),
    (_TOUCHED, "    if before.timeline.shared_times or timeline.shared_times:\n        return None\n", "", "touched"),
    (_TOUCHED, "for p in (*r.bases, *r.replaced, *(r.named or ())) if", "for p in r.bases if", "touched"),
    ("timeline/service/states/loading", "    table.views.check_not_undone(timeline)\n", "", "beside_services"),
    ("timeline/service/states/loading", ", several=bool(table.config.partition_fields)", "", "listing_in_pages"),
    ("timeline/service/states/loading", "_OLDEST_LISTED = 1", "_OLDEST_LISTED = 0", "touched"),
    ("timeline/service/states/instant_records", "        if recorded is None:\n", "        if True:\n", "touched"),
    ("timeline/service/states/loading", "    if not _goes_out(before.timeline, timeline):\n", "    if True:\n", "recorded_answers"),
    ("timeline/service/states/loading", "[p for p in again - before.partitions.keys() if not above(p, before.partitions)]", "[]", "recorded_answers"),
    ("timeline/dashboard/health", "age > slo_s", "age >= 0", "table_states"),
    ("timeline/dashboard/health", "    ages = [(row[\"age_s\"], row) for row in pending if row[\"action\"] == \"compaction\" and", "    ages = [(row[\"age_s\"], row) for row in pending if", "table_states"),
    ("timeline/dashboard/health", "        if row[\"state\"] == \"parked\":", "        if False:", "pages"),
    ("timeline/service/wire/quick_http", "        self._body_bytes += len(body)\n", "", "process"),
    (_MARKERS, "\"\".join(f\"{name}\\n\" for name in names)", "\",\".join(names)", "service/markers"),
    (_MARKERS, "return done.result() and first", "return done.result()", "service/markers"),
    (_MARKERS, "        storage.delete(kind)\n", "        pass\n", "service/markers"),
    (_MARKERS, "self._known is None or self._storage.find", "self._known is None or not self._storage.find", "service/markers"),
)  # fmt: skip
