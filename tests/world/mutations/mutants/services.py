# ruff: noqa: E501
"""The services of a table: when the daemon runs them, and with which options."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_DISPATCH = "compactor_daemon/daemon/dispatch"
_SERVICES = "compactor_daemon/services"

MUTANTS: tuple[Mutant, ...] = (
    (_DISPATCH, "if rules.services and (at_rest or not rules.once) else []", "if rules.services else []", "dispatch"),
    (_DISPATCH, "if rules.once and at_rest and not serves and not any(t.serving for t in tables.values()):", "if rules.once and at_rest and not serves:", "dispatch"),
    (_DISPATCH, "not any(t.busy or t.serving for t in tables.values())", "not any(t.busy for t in tables.values())", "dispatch"),
    (_DISPATCH, "        and t.available\n        and not (t.serving or", "        and not (t.serving or", "dispatch"),
    (_DISPATCH, "    moments += [t.serve_at for t in tables.values() if rules.services and not t.serving]\n", "", "dispatch"),
    ("compactor_daemon/daemon/loop", "every_s = 0.0 if self._rules.once else self._rules.services_s", "every_s = self._rules.services_s", "daemon"),
    (f"{_SERVICES}/last_run", "not 0 <= now_ms - runs[s].at_ms <", "not now_ms - runs[s].at_ms <", "services"),
    (f"{_SERVICES}/last_run", "runs = last_runs(storage) | {", "runs = {", "services"),
    (f"{_SERVICES}/last_run", "s not in runs or", "all(other not in runs for other in Service) or", "services"),
    (f"{_SERVICES}/options", "counted.beside_cleaner(cleaned)", "counted", "services"),
    (f"{_SERVICES}/options", "and self.clean.policy is Policy.COMMITS else 0", "else 0", "services"),
    ("compactor_daemon/hudi_conf", "options.retain if policy is options.policy else None", "options.retain", "services"),
    ("timeline/planning/options", "names = (partition, f\"{partition}/{file_id}\".lstrip(\"/\"))", "names = (partition,)", "planner"),
    ("writer_hooks/write/pasted", "(text.upper() == OPTIMISTIC and has_lock)", "text.upper() == OPTIMISTIC", "pasted"),
    ("writer_hooks/write/pasted", "    if one.kind is Kind.ONLY:\n", "    if False:\n", "hudi_names"),
    ("writer_hooks/write/pasted", "    if one.agrees(text):\n", "    if not text:\n", "hudi_names"),
    ("writer_hooks/write/conf", '"hoodie.combine.before.insert": ("combine_inserts", _flag)', '"hoodie.combine.before.insert": ("combine_upserts", _flag)', "hudi_names"),
    ("writer_hooks/write/conf", " and found.get(\"lazy_rollback\") is False:", " and False:", "hudi_names"),
    ("writer_hooks/write/conf", "* given.get(\"misses\", _MISSES)", "* _MISSES", "hudi_names"),
    ("compactor_daemon/hudi_conf", "numbers[0] if infers and len(numbers) == 1 else None", "None", "hudi_names"),
    ("compactor_daemon/hudi_conf", "    if one is not None and one.kind is Kind.ONLY:\n", "    if False:\n", "hudi_conf"),
    ("compactor_daemon/hudi_names", "            raise contradiction(first, kept[first], name, value)\n", "            continue\n", "hudi_names"),
    ("compactor_daemon/hudi_names", "            not known[name].agreeing or ", "            ", "hudi_names"),
    ("writer_hooks/write/conf", "if field in said and field in found", "if field in found", "hudi_names"),
    ("writer_hooks/write/conf", "            if mine not in (value, getattr", "            if mine in (value, getattr", "hudi_names"),
    ("writer_hooks/write/write", "opening = replace(opening, expiry_s=min(opening.expiry_s, expiry_s))", "opening = replace(opening, expiry_s=opening.expiry_s)", "hudi_names"),
    ("writer_hooks/commit/transaction", "self.pulse.lapsed(self.expiry_s)", "self.pulse.lapsed()", "hudi_names"),
    ("timeline/locks/table_lock", "0xDABADABA - (1 << 32) + (1 << 64)", "0xDABADABA", "hudi_names"),
    ("writer_hooks/write/conf", "            problems[name] = error\n", "            raise error\n", "pasted"),
    ("compactor_daemon/attempt/compact_instant", "lock, dict(options.properties))", "lock)", "split"),
)  # fmt: skip
