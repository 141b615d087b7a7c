# ruff: noqa: E501
"""Breaks one rule of the product at a time and runs the tests of that rule: a mutant that lives is a rule untested.

    python -m tests.mutations [WORD ...]     only mutants whose file or text holds one of the words

Works on copies of a snapshot, whose tests must pass first. A mutant whose text is no longer in the code, or is
there more than once, is `stale`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORKERS = 2
RUN_S_MAX = 300

Mutant = tuple[str, str, str, str]
"""(module of timeline, or the path of another without its ending; text, text instead, test modules)."""

MUTANTS: tuple[Mutant, ...] = (
    # Which log entry wins.
    ("fold", "if mode is MergeMode.COMMIT_TIME:", "if False:", "fold"),
    ("fold", "if mode is MergeMode.EVENT_TIME:", "if mode in (MergeMode.EVENT_TIME, MergeMode.EVENT_TIME_0X):", "fold"),
    ("fold", "best = order == top[codes]", "best = order >= 0", "fold"),
    ("fold", "return _last(codes[best], positions[best], keys)", "return _last(codes[best][::-1], positions[best][::-1], keys)", "fold"),
    ("fold", "alive = positions > reset[codes]\n", "alive = positions >= 0\n", "fold"),
    ("fold", "rows = alive & (kinds != EntryKind.DELETE)", "rows = alive & (kinds == EntryKind.ROW)", "fold"),
    ("fold", "alive &= (reset[codes] < 0) | (positions >= first_row[codes])", "pass", "fold"),
    ("fold", "(reset[codes] < 0) | (positions", "(positions", "fold"),
    ("fold", "effective = is_delete & natural", "effective = is_delete & False", "fold"),
    ("fold", "typed = is_delete & ~natural", "typed = is_delete & False", "fold"),
    ("fold", "marked | (delete & (rank >= greatest_row))", "marked | (delete & (rank > greatest_row))", "fold"),
    ("fold", "marked | (delete & (rank >= greatest_row))", "marked | delete", "fold"),
    ("fold", "        if (grown == marked).all():", "        if True:", "fold"),
    # How they meet the base.
    ("merge_rule", "    if self.mode is MergeMode.EVENT_TIME and values", "    if values", "merge"),
    ("merge_rule", "values.type == pa.int32() and values.null_count", "False", "merge"),
    ("log_fold", "kinds[batch.deleted] = EntryKind.DELETED_ROW", "pass", "merge"),
    ("log_fold", "natural = batch.deleted & _is_integer_zero(rule, values, count)", "pass", "merge"),
    ("log_fold", "    if len(types) > 1:\n        return np.zeros(count, np.bool_)", "    if len(types) > 1:\n        return np.ones(count, np.bool_)", "merge"),
    ("log_fold", "pc.equal(values[0], 0) if types[0] == pa.int32() else", "", "merge"),
    ("log_fold", "hudi_0x=rule.mode in HUDI_0X)", "hudi_0x=False)", "merge"),
    ("log_fold", "hudi_0x=rule.mode in HUDI_0X)", "hudi_0x=True)", "merge"),
    ("log_fold", "hudi_0x=mode in HUDI_0X)", "hudi_0x=False)", "merge"),
    ("log_fold", "        natural = np.ones(count, np.bool_)\n", "", "merge"),
    ("log_fold", "row = np.where(live, np.cumsum(live) - 1, -1)", "row = np.cumsum(live) - 1", "merge"),
    ("merge", "if mode in (MergeMode.COMMIT_TIME, MergeMode.OVERWRITE_WITH_LATEST_0X)", "if mode in (MergeMode.COMMIT_TIME,)", "merge"),
    ("merge", "won.natural[key] if mode is MergeMode.EVENT_TIME else is_delete", "is_delete", "merge"),
    ("merge", "won.natural[key] if mode is MergeMode.EVENT_TIME else is_delete", "won.natural[key]", "merge"),
    ("merge", "is_delete = won.kinds[key] == EntryKind.DELETE", "is_delete = won.kinds[key] != EntryKind.ROW", "merge"),
    ("merge", "always | at_least(left, right", "at_least(left, right", "merge"),
    ("merge", "self._rule.comparable(a.take(rows)) for", "a.take(rows) for", "merge"),
    ("merge", "first &= ~self._seen[key]", "pass", "merge"),
    ("merge", "first[np.unique(key, return_index=True)[1]] = True", "first[:] = True", "merge"),
    ("merge", "if self._rule.every_duplicate:", "if True:", "merge"),
    ("merge", "if self._rule.every_duplicate:", "if False:", "merge"),
    ("merge", "self._seen[key] = True\n", "self._seen[key[:1]] = True\n", "merge"),
    ("merge", "np.flatnonzero(self._won.is_update & ~self._seen)", "np.flatnonzero(self._won.is_update)", "merge"),
    ("merge_rule", "alive[self.deleted] = False", "pass", "merge"),
    ("merge", 'counts["untouched"] += rows - hits', 'counts["untouched"] += rows', "merge"),
    ("merge", 'counts["kept"] += hits - applied', 'counts["kept"] += hits', "merge"),
    # Ordering values.
    ("ordering", "np.where(raw < 0, raw ^ np.int64(0x7FFFFFFFFFFFFFFF), raw)", "raw", "merge"),
    ("ordering", "bits[np.isnan(bits)] = np.nan", "bits[np.isnan(bits)] = -np.inf", "merge"),
    ("ordering", "np.where(negative, dense + dense.max(initial=0), dense)", "dense", "merge"),
    ("ordering", "return greater | equal", "return greater", "merge"),
    ("ordering", "((y_null & ~x_null) | (both", "((both", "merge"),
    ("ordering", "equal &= (x_null & y_null) | ", "equal &= ", "merge"),
    ("ordering", "greater |= equal & (", "greater |= (", "merge"),
    ("ordering", "return bool(wrapper == pa.int32())", "return False", "merge"),
    ("ordering", "return bool(wrapper == pa.int32())", "return True", "merge"),
    ("ordering", "hudi_0x and (types.is_string(column) or types.is_decimal(column)):", "hudi_0x and types.is_string(column):", "merge"),
    ("ordering", "return bool(wrapper == pa.int64())", "return bool(types.is_timestamp(wrapper))", "merge"),
    ("ordering", "return bool(wrapper == column)", "return True", "merge"),
    # The books: every equation.
    # What does not fit in memory.
    ("log_spill", "home = (hash_keys(part.keys, _HASH_SEED) % np.uint64(len(self))).astype(np.int64)", "home = np.arange(count, dtype=np.int64) % len(self)", "memory_limit"),
    ("log_spill", 'order = np.argsort(home, kind="stable")', 'order = np.argsort(home, kind="stable")[::-1]', "memory_limit"),
    ("log_spill", "row[np.flatnonzero(live)[order]] = np.arange(len(order))", "row[np.flatnonzero(live)] = np.arange(len(order))", "memory_limit"),
    ("spilled_merge", "start += len(batch.keys)", "pass", "memory_limit"),
    ("spilled_merge", "table = by_position(found)", "table = pa.concat_tables(found)", "memory_limit"),
    ("spilled_merge", "untouched = books.untouched - (len(self._books) - 1) * self._base_rows", "untouched = books.untouched", "memory_limit"),
    ("spill_file", "self._held = table.slice(cut)", "pass", "memory_limit"),
    ("log_decode", "last = max(first + 1, ", "last = max(first + 2, ", "memory_limit"),
    # Who is who.
    ("identity", "columns[RECORD_KEY] = keys", "pass", "row_hash"),
    ("identity", "(self.base - self.removed + self.added) & _MASK", "self.out", "merge"),
    ("identity", "self._removed += hash_sum(hashes[changes.replaced]) + hash_sum(hashes[changes.deleted])", "pass", "memory_limit"),
    ("identity", "self._added += hash_sum(changes.hashes)", "pass", "memory_limit"),
    ("identity", "        self._added += hash_sum(hashes)", "        pass", "memory_limit"),
    ("row_hash", "total = _mixed(total * _A + _hashes(flat(column)))", "total = total + _hashes(flat(column))", "row_hash"),
    ("row_hash", "result[np.asarray(array.is_null())] = _NULL", "pass", "row_hash"),
    ("row_hash", "items + place.astype(np.uint64) * _A", "items", "row_hash"),
    ("audit", 'if str(log.name) not in books.inputs:', "if False:", "audit"),
    ("audit", "if same and text != books.output:", "if False:", "audit"),
    ("kept_books", "if len(set(texts.values())) > 1:", "if False:", "audit"),
    ("audit", "        books.ledger.check_itself(books.path(books.file_id))\n", "", "audit"),
    ("audit", '_same("size of the file written", size, books.size, path)', "pass", "audit"),
    ("audit", '_same("hash of the rows in it", f"{out:016x}", f"{ledger.identity.out:016x}", path)', "pass", "audit"),
    ("audit", '_same("books of the merge run again", again, ledger, path)', "pass", "audit"),
    ("ledger", "self.base_rows, footer_rows_in)", "0, 0)", "merge"),
    ("ledger", "self.log_entries, header_entries)", "0, 0)", "merge"),
    ("ledger", "self.rows_out, footer_rows_out)", "0, 0)", "merge"),
    ("ledger", "self.base_rows, self.untouched + touched)", "0, 0)", "merge"),
    ("ledger", "self.base_rows - self.deleted + self.inserts", "self.rows_out", "merge"),
    ("ledger", "self.update_keys, self.update_keys_in_base + self.inserts)", "0, 0)", "merge"),
    ("ledger", "self.delete_keys_in_base + self.deletes_of_absent,", "delete_keys,", "merge"),
    ("ledger", "self.update_keys_in_base + self.delete_keys_in_base + self.duplicate_hits", "touched", "merge"),
    ("ledger", "if self.superseded < 0:", "if False:", "merge"),
    # File slices.
    ("view", "if not timeline.is_committed(instant):\n            continue", "pass", "view"),
    ("view", "if compacted.get(instant, str(base.name)) != str(base.name):", "if False:", "view"),
    ("view", "if instant in visible:", "if False:", "view"),
    ("view", "if compacted_at and replaced_at is None and", "if False and", "view"),
    ("view", "compacted_at and replaced_at is None and", "compacted_at and", "view"),
    ("view", '< compacted_at:', '!= compacted_at:', "view"),
    ("view", "{file_id for (part, file_id) in facts.compacted if part == partition}", "set()", "view"),
    ("view", "for (part, file_id) in facts.compacted if part == partition}", "for (part, file_id) in facts.compacted}", "view"),
    ("view", "isinstance(name, LogFileName) and not name.is_cdc:", "isinstance(name, LogFileName):", "view"),
    ("view", "ordered = sorted(logs, key=lambda log: log.name.sort_key)", "ordered = logs", "view"),
    ("view", "if instant in stacks or timeline.is_committed(instant):", "if instant in stacks:", "view"),
    ("view", "if instant in stacks or timeline.is_committed(instant):", "if True:", "view"),
    ("view", "if completion is None:\n            continue", "completion = completion or '9'", "view"),
    ("view", "if instant <= completion)", "if instant < completion)", "view"),
    ("view", "if instant <= completion)", "if True)", "view"),
    ("view", "default=log.name.instant)", "default=min(stacks, default=log.name.instant))", "view"),
    ("view", "if last.base_instant != group.pending_compaction or len(slices) == 1:", "if len(slices) == 1:", "view"),
    ("view", "if last.base_instant != group.pending_compaction or len(slices) == 1:", "if True:", "view"),
    ("view", "or len(slices) == 1:", ":", "view"),
    ("view", "logs=before.logs + last.logs", "logs=last.logs + before.logs", "view"),
    ("view", "slices = [s for s in group.slices if as_of is None or s.base_instant <= as_of]", "slices = list(group.slices)", "view"),
    ("view", "(s for s in group.slices if s.base_instant < instant)", "(s for s in group.slices if s.base_instant <= instant)", "view"),
    ("view", "if s.base and (as_of is None or s.base_instant <= as_of)]", "if s.base]", "view"),
    ("view", "(as_of is None or instant <= as_of)\n", "(as_of is None or instant < as_of)\n", "view"),
    ("active", "and (time < self.start or time in self._archived_writes)", "and time < self.start", "view"),
    ("active", "and (time < self.start or time in self._archived_writes)", "and time in self._archived_writes", "view"),
    ("active", "instant.completion_time or self.legacy_completions.get(time) or time", "instant.completion_time or time", "view"),
    ("active", "return UNKNOWN_COMPLETION if self.is_committed(time) else None", "return time if self.is_committed(time) else None", "view"),
    ("active", "return UNKNOWN_COMPLETION if self.is_committed(time) else None", "return None", "view"),
    ("active", "for i in self.instants if i.is_write), default", "for i in self.instants), default", "view"),
    ("active", "for i in self.archived if i.is_write}", "for i in self.archived}", "view"),
    ("active", 'i.action == "savepoint"', "False", "view"),
    # Which blocks count.
    ("log_scan", "skipped.append((block, Skipped.CORRUPT))", "kept.append(block)", "log_scan"),
    ("log_scan", "skipped.append((block, Skipped.CHANGE_DATA))", "kept.append(block)", "log_scan"),
    ("log_scan", "kept = [b for b in kept if b.instant != target]", "pass", "log_scan"),
    ("log_scan", "kept = [b for b in kept if b.instant != target]", "kept = []", "log_scan"),
    ("log_scan", "if block.instant > visibility.latest:", "if block.instant >= visibility.latest:", "log_scan"),
    ("log_scan", "if not visibility.by_file and", "if", "log_scan"),
    ("log_scan", "instant not in self.pending and instant < self.start", "instant < self.start", "log_scan"),
    ("log_scan", "instant not in self.pending and instant < self.start", "instant not in self.pending", "log_scan"),
    ("log_scan", "instant in self.completed or ", "", "log_scan"),
    ("log_scan", "for instant in reversed(plain))", "for instant in plain)", "log_scan"),
    ("log_scan", "by_instant if instant not in compacted]", "by_instant]", "log_scan"),
    ("log_scan", "and after not in seen:", "and False:", "log_scan"),
    # What of a slice's logs may be merged.
    ("log_pieces", "any(before.place < p < after.place for p in pending)", "False", "log_pieces"),
    ("log_pieces", "not (before.whole and after.whole) or ", "", "log_pieces"),
    ("log_pieces", "start == 0 and not any(p < pieces[0].place for p in pending)", "start == 0", "log_pieces"),
    ("log_pieces", "place=max((i for i in below if not stands_for[i]), default=instant)", "place=instant", "log_pieces"),
    ("log_pieces", "for of in owners.values() if len(of) > 1", "for of in owners.values() if len(of) > 2", "log_pieces"),
    ("log_pieces", "if cause is Skipped.ROLLED_BACK}", "if cause is Skipped.CORRUPT}", "log_pieces"),
    ("log_pieces", "return bottom or not any(p.deletes for p in pieces)", "return True", "log_pieces"),
    ("log_pieces", "in HUDI_0X or IS_DELETED in rules.schema.names", "in HUDI_0X", "log_pieces"),
    ("log_plan", "if not others and all(_names(p) <= names for p in chosen):", "if not others:", "log_pieces"),
    ("log_plan", "if not others and all(_names(p) <= names for p in chosen):", "if all(_names(p) <= names for p in chosen):", "log_pieces"),
    # Framing and contents.
    ("log_block", "length >= _FIXED_BYTES and end <= size and", "length >= _FIXED_BYTES and", "log_block"),
    ("log_block", "length >= _FIXED_BYTES and end <= size and", "end <= size and", "log_block"),
    ("log_block", "total == length + 6 and", "", "log_block"),
    ("log_block", "_next_magic(source, offset + 1, size)", "size", "log_block"),
    ("log_block", "_SEARCH_STEP_BYTES + len(MAGIC) - 1", "_SEARCH_STEP_BYTES", "log_block"),
    ("log_block", "if version != FORMAT_VERSION:", "if False:", "log_block"),
    ("log_block", "frozenset(BlockKind) - {BlockKind.CORRUPT}", "frozenset(BlockKind)", "log_block"),
    ("log_block", "end - reader.position - 12:", "end - reader.position:", "log_block"),
    ("log_block", "if count < 0 or self.position + count > self._end:", "if False:", "log_block"),
    ("log_decode", "if value < 0:", "if False:", "log_decode"),
    ("log_decode", "if version != CONTENT_VERSION:", "if False:", "log_decode"),
    ("log_decode", '.lower() == "true":', '== "1":', "log_decode"),
    ("log_decode", "if total != expected or lengths.min(initial=0) < 0:", "if False:", "log_decode"),
    ("log_decode", "if content.size != block.content_bytes:", "if False:", "log_decode"),
    ("log_decode", "float_as_text=text)", "float_as_text=True)", "log_decode"),
    ("delete_block", "if length != content.size - 8:", "if False:", "log_decode"),
    ("delete_block", 'if uniform is not None and body[body.size - 1 :].to_pybytes() == b"\\x00":', "if uniform is not None:", "log_decode"),
    ("delete_block", 'if table.column("key")[count].as_py() != _SENTINEL_KEY.decode():', "if False:", "log_decode"),
    ("delete_block", "if stream.read(1):", "if False:", "log_decode"),
    ("delete_block", "    if any(not pc.all(pc.equal", "    if False and any(not pc.all(pc.equal", "log_decode"),
    ("delete_block", "natural = pc.equal(ordering[0], 0)", "natural = pa.repeat(False, len(keys))", "log_decode"),
    ("delete_block", "    if branch == INT:", "    if branch in (2, 3):", "log_decode"),
    ("delete_entry", "NESTED: tuple[Any, ...] = (*WRAPPED, DATE)", 'NESTED: tuple[Any, ...] = (*WRAPPED, "string")', "log_decode"),
    # Rows to be written.
    ("exact_rows", "if not field.nullable and array.null_count > above:", "if not field.nullable and array.null_count:", "avro_encode"),
    ("exact_rows", "array.drop_null())[1]", "array)[1]", "avro_encode"),
    ("exact_rows", "source.bit_width <= target.bit_width", "True", "avro_encode"),
    ("exact_rows", '_check_names(rows.schema.names, schema.names, "columns of the rows")', "pass", "avro_encode"),
    ("avro_encode", '2 * node.index("null")', "0", "avro_encode"),
    ("avro_encode", "dense = array.drop_null()", "dense = array.fill_null(array.drop_null()[0])", "avro_encode"),
    ("avro_encode", "        used = more\n", "", "avro_encode"),
    ("avro_encode", "rest = ((signed << 1) ^ (signed >> 63))", "rest = (signed << 1)", "avro_encode"),
    ("avro_encode", "if numbers.null_count > array.null_count:", "if False:", "avro_encode"),
    ("avro_encode", " ^ sign[:, None]) < 0x80)", " ^ sign[:, None]) < 0x00)", "avro_encode"),
    ("avro_encode", " or ((values[:, spare] ^ sign) >= 0x80).any()", "", "avro_encode"),
    ("avro_encode", "[array.offset : array.offset + len(array)]", "[: len(array)]", "avro_encode"),
    ("avro_encode", "values = np.where(valid[:, None], values, np.uint8(0))", "pass", "avro_encode"),
    ("avro_encode", "[*_varints(counts, some)", "[*_varints(counts, None)", "avro_encode"),
    ("log_write", "struct.pack(\">iq\", 0, size + len(MAGIC))", "struct.pack(\">iq\", 0, size)", "log_write"),
    ("log_write", "if len(array) != len(keys) or array.null_count:", "if len(array) != len(keys):", "log_write"),
    ("log_write", "if size > CONTENT_BYTES_MAX:", "if size > CONTENT_BYTES_MAX + 1:", "log_write"),
    ("log_write", "if alone and pc.any", "if pc.any", "log_write"),
    ("log_write", "if alone and pc.any", "if False and pc.any", "log_write"),
    ("log_write", "    if not hudi_0x:\n", "    if True:\n", "log_write"),
    ("log_write", "types.is_timestamp(kind) or ", "", "log_write"),
    ("conform", "if not field.nullable and column.null_count:", "if False:", "conform"),
    ("conform", "if float_as_text and", "if", "conform"),
    ("conform", "source.bit_width <= target.bit_width)\n    if types.is_floating(target)", "True)\n    if types.is_floating(target)", "conform"),
    ("conform", "source.scale <= target.scale and", "", "conform"),
    ("conform", "source.precision <= target.precision", "True", "conform"),
    ("conform", "return array.is_null() if array.null_count else None", "return None", "conform"),
    ("key_lookup", "found[rows[~np.asarray(pc.fill_null(same, False))]] = -1", "pass", "key_lookup"),
    ("key_lookup", "if not (self._sorted[1:] == self._sorted[:-1]).any():", "if True:", "key_lookup"),
    ("key_lookup", "candidate[open_probes] += 1\n            open_probes = open_probes[~hit & (at + 1 < end[open_probes])]", "break", "key_lookup"),
    # Names and times.
    ("instant", "best[key].state < instant.state", "True", "instant_layout"),
    ("instant", 'int(text[14:] or "999")', 'int(text[14:] or "0")', "instant_layout"),
    ("instant", "return candidate if candidate > floor else", "return candidate if candidate >= floor else", "instant_layout"),
    ("instant", 'u.ljust(17, "9")', "u", "instant_layout"),
    ("layout", 'if second is None and first == "inflight":', "if False:", "instant_layout"),
    ("layout", "(second is not None or not self.has_completion_times)", "second is not None", "instant_layout"),
    ("layout", "if action not in ACTIONS:", "if False:", "instant_layout"),
    ("file_name", 'self.instant, self.version, self.token or ""', 'self.instant, str(self.version), self.token or ""', "file_name"),
    ("file_name", 'name.endswith(".crc") or', "", "file_name"),
    # Storage.
    ("local_storage", "except FileExistsError:\n        return False", "except FileExistsError:\n        return True", "storage"),
    ("local_storage", "        os.link(source, target)", "        os.replace(source, target)", "storage"),
    ("local_storage", 'return open(full, "xb")', 'return open(full, "wb")', "storage"),
    ("local_storage", 'os.unlink(os.path.join(os.path.dirname(full), f".{os.path.basename(full)}.crc"))', "pass", "storage"),
    ("local_storage", "continue  # gone between", "raise  # gone between", "storage"),
    # Few bytes that stand for much.
    ("errors", 'if "\\n" in text or "\\r" in text else text', "if False else text", "hostile_bytes"),
    ("avro_schema", "self._depth > _DEPTH_MAX or", "", "hostile_bytes"),
    ("avro_schema", "if smallest_bytes(items) == 0:", "if False:", "hostile_bytes"),
    ("avro_schema", "not 0 <= size <= FIXED_BYTES_MAX", "size < 0", "hostile_bytes"),
    ("avro_schema", "return 1 + min(", "return min(", "hostile_bytes"),
    ("avro_arrow", "if count * max(1, smallest_bytes(schema)) > data.size:", "if False:", "hostile_bytes"),
    ("avro_container", 'if header.codec != "null":', "if False:", "hostile_bytes"),
    ("avro_container", 'parse_avro(header.metadata["avro.schema"])', "pass", "hostile_bytes"),
    ("delete_block", "if not 0 <= index <= ARRAY:", "if index > ARRAY:", "hostile_bytes"),
    ("delete_block", "if not 0 < size <= ORDERING_VALUES_MAX:", "if size < 1:", "hostile_bytes"),
    ("log_decode", " or lengths.min(initial=0) < 0", "", "hostile_bytes"),
    ("layout", 'not path.startswith("/") and', "", "hostile_bytes"),
    ("layout", """ and ".." not in path.split("/")""", "", "hostile_bytes"),
    ("parquet_input", "    if coded:\n        file", "    if False:\n        file", "parquet_input"),
    ("parquet_input", "min([batch_rows, *_fitting_rows(metadata)])", "batch_rows", "parquet_input"),
    ("parquet_input", "if width > FIXED_BYTES_MAX:", "if False:", "parquet_input"),
    ("parquet_input", "if decoded > limit:", "if False:", "parquet_input"),
    ("parquet_input", "and not overflowed", "", "parquet_input"),
    ("parquet_input", "if min(groups, default=0) < 0 or sum(groups) != file.metadata.num_rows:", "if False:", "parquet_input"),
    ("parquet_input", "np.cumsum(sizes) // _BATCH_BYTES", "np.cumsum(sizes) * 0", "parquet_input"),
    ("row_hash", "_mixed(words + places)", "_mixed(words)", "row_hash"),
    ("row_hash", "(result ^ last) * _C +", "result * _C +", "row_hash"),
    # Writing.
    ("writer_hooks/conflict", "return f\"file group {'/'.join(key)}\"", "continue", "writer_conflicts"),
    ("writer_hooks/conflict", "(mine.appended | mine.rewritten) & groups", "mine.appended & groups", "writer_conflicts"),
    ("writer_hooks/conflict", "(theirs.partition_to_replace_file_ids or {}).items()", "{}.items()", "writer_conflicts"),
    ("writer_hooks/conflict", "mine.buckets & {", "set() & {", "writer_conflicts"),
    ("writer_hooks/conflict", "if s.num_inserts and _is_base(s.path)", "if _is_base(s.path)", "writer_conflicts"),
    ("writer_hooks/conflict", "sorted(mine.inserts & new)", "sorted(set())", "writer_conflicts"),
    ("writer_hooks/conflict", "if logs_too or mine.looked_up else", "if logs_too else", "writer_conflicts"),
    ("writer_hooks/conflict", "mine.rewritten | mine.appended if", "mine.appended if", "writer_conflicts"),
    ("writer_hooks/conflict", "else mine.rewritten\n", "else frozenset()\n", "writer_conflicts"),
    ("writer_hooks/insert_plan", "group.pending_compaction is not None or ", "", "writer_conflicts"),
    ("writer_hooks/insert_plan", "group.key in busy or ", "", "writer_conflicts"),
    ("writer_hooks/insert_plan", "or last.logs:", "or False:", "writer_conflicts"),
    ("writer_hooks/insert_plan", "if last.base.size < small_file_bytes else 0", "", "writer_conflicts"),
    ("writer_hooks/stream", "if intent.batch > batch.number:", "if False:", "writer_conflicts"),
    ("writer_hooks/stream", "if intent.instant in timeline.pending_writes:\n        return None", "if intent.instant in timeline.pending_writes:\n        return intent.instant", "writer_conflicts"),
    ("writer_hooks/stream", "return intent.instant if any(", "return None if any(", "writer_conflicts"),
    # Back-pressure.
    ("writer_hooks/back_pressure", ">= limit\n", "> limit\n", "back_pressure"),
    ("writer_hooks/back_pressure", "(slice_ := latest_slice(group)) is not None", "(slice_ := group.slices[-1] if group.slices else None) is not None", "back_pressure"),
    ("writer_hooks/back_pressure", "if appends_to(g)), limit)", "), limit)", "back_pressure"),
    ("writer_hooks/back_pressure", "if not (self._compacts or", "if not (True or", "back_pressure"),
    ("writer_hooks/back_pressure", "or wanted is not None or", "or", "back_pressure"),
    ("timeline/schedule", "            for one in requested:\n", "            remove_wanted(table.storage)\n            for one in requested:\n", "back_pressure"),
    ("writer_hooks/back_pressure", "if self._options.action is FullAction.WAIT else 0.0", "", "back_pressure"),
    ("writer_hooks/back_pressure", "if not is_replaced(group, facts)]", "]", "back_pressure"),
    ("writer_hooks/write", "        compaction = due_at_once(options.compaction) if unplanned else options.compaction\n", "        compaction = options.compaction\n", "back_pressure"),
    ("writer_hooks/write", "        _roll_back_dead(table.reload(), lock, options)  # on version 6 a dead one would keep every plan from being made\n", "", "back_pressure"),
    ("writer_hooks/write", "(BackPressure() if in_stream else NO_LIMIT)", "NO_LIMIT", "back_pressure"),
    ("writer_hooks/write", "(BackPressure() if in_stream else NO_LIMIT)", "BackPressure()", "back_pressure"),
    ("writer_hooks/write", "        if options.buckets is not None:\n            _check_buckets(room, counts)\n", "", "back_pressure"),
    ("writer_hooks/write", "            room.check((partition for partition, _ in mine.appended), lambda group: group.key in mine.appended)\n", "", "back_pressure"),
    ("writer_hooks/after_commit", "        strategy=TriggerStrategy.TIME_ELAPSED,\n", "        strategy=TriggerStrategy.ALWAYS,\n", "back_pressure"),
    ("writer_hooks/after_commit", "    at_once = ScheduleOptions(\n", "    at_once = replace(\n        said,\n", "back_pressure"),
    # Unscheduling, and executors of Hudi.
    ("compactor_daemon/unschedule", "        storage.put_if_absent(path, data)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "        ended |= _end_attempts(storage, instant, who)\n", "        pass\n", "unschedule"),
    ("compactor_daemon/unschedule", "Slicing.BY_BASE_INSTANT and pending and not plan.merges_logs", "Slicing.BY_BASE_INSTANT and False", "unschedule"),
    ("compactor_daemon/unschedule", "    _refuse_files(table, instant, plan)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "    refuse_rollback(table, instant)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "trace.inflight_ms is not None or trace.is_live", "trace.is_live", "unschedule"),
    ("compactor_daemon/unschedule", "trace.inflight_ms is not None or trace.is_live(round(time.time() * 1000), options)", "trace.inflight_ms is not None", "unschedule"),
    ("compactor_daemon/unschedule", "    remove_staged(storage, instant)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "if movable_keys(_view(table, instant), instant, deletes) == keys:", "if True:", "unschedule"),
    ("compactor_daemon/moved_keys", "base.name.instant > instant", "False", "unschedule"),
    ("compactor_daemon/moved_keys", "if len(gone) and keys.pending:", "if False:", "unschedule"),
    ("compactor_daemon/moved_keys", "pa.array(~lives)", "pa.array(lives | True)", "unschedule"),
    ("compactor_daemon/attempt", "    _refuse_unscheduled(table, instant, who)\n", "", "unschedule"),
    ("compactor_daemon/records", "if fate is None or fate.kind == GO:\n            raise ConflictError(", "if fate is None or fate.kind != DEAD:\n            raise ConflictError(", "unschedule"),
    ("compactor_daemon/compactor", "                watch.check()\n", "", "foreign"),
    ("compactor_daemon/decision", "    ForeignWatch(table, instant, attempt.number, attempt.trace).look()\n", "", "foreign"),
    ("compactor_daemon/foreign", "        if self._clock() >= self._next:", "        if True:", "foreign"),
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
    ("compactor_daemon/failures", "if isinstance(error, LedgerError):", "if False:", "failures fleet"),
    ("compactor_daemon/failures", "isinstance(error, TableChangedError) or not", "not", "failures"),
    ("compactor_daemon/failures", "len(failures) > options.retries", "len(failures) >= options.retries", "failures"),
    ("compactor_daemon/failures", "any(f.park for f in failures) or ", "", "failures"),
    ("compactor_daemon/failures", "_DOUBLINGS_MAX), options.backoff_max_s)", "_DOUBLINGS_MAX), 1e9)", "failures"),
    ("compactor_daemon/failures", "return sorted(int(e.name)", "return list(int(e.name)", "failures"),
    ("compactor_daemon/daemon", "        if served.is_done(instant):", "        if False:", "fleet daemon"),
    ("compactor_daemon/daemon", "            if held.lost:\n", "            if False:\n", "daemon"),
    ("compactor_daemon/daemon", "how is Stop.HAND_OVER or instant in", "instant in", "daemon"),
    ("compactor_daemon/daemon", "how is Stop.HAND_OVER or instant in self._states[table].aside", "how is Stop.HAND_OVER", "daemon"),
    ("compactor_daemon/dispatch", "free - len(resumed)", "free", "dispatch"),
    ("compactor_daemon/table_state", "len(self.running) - len(self.aside)", "len(self.running)", "daemon dispatch"),
    ("compactor_daemon/daemon", "        if weight is Weight.NOTHING:\n            return\n", "", "daemon"),
    ("compactor_daemon/daemon", "        finally:\n            held.release()\n", "        finally:\n            pass\n", "daemon"),
    ("compactor_daemon/daemon", "if isinstance(error, SparkError) and self._spark_is_gone():", "if False:", "daemon"),
    ("compactor_daemon/served_table", "timeline.instants != self._refused or", "True or", "fleet served_table"),
    ("compactor_daemon/serve", "    for table in tables.values():\n        check_keepable(table, moves_rows=False)\n", "", "fleet"),
    # Spark on a cluster.
    ("compactor_daemon/spark_start", '"spark.dynamicAllocation.enabled": "true"', '"spark.dynamicAllocation.enabled": "false"', "spark_cluster spark_start"),
    ("compactor_daemon/execute", "except Exception as error:  # in the words", "except ZeroDivisionError as error:  # in the words", "spark_cluster"),
    # The metadata table.
    ("writer_hooks/transaction", "            tell(table, change, update)\n", "", "metadata_faults"),
    ("compactor_daemon/publish", "        tell(table, change, update)\n", "", "metadata_faults"),
    ("rollback", "        forget(table, plan.target)\n", "", "metadata_faults"),
    ("timeline/metadata_table/commit", "    forget(table, instant)\n", "", "metadata_faults metadata_commit"),
    ("timeline/metadata_table/commit", "    _refuse_compacted(metadata, timeline, found)\n", "", "metadata_commit"),
    ("timeline/metadata_table/commit", "with_meta_columns(without_meta_columns(text))", "text", "metadata_faults"),
    ("timeline/metadata_table/commit", "file_group_index(one[0], len(of_partition))", "0", "metadata_commit metadata_statistics"),
    ("timeline/metadata_table/partitions", "name.startswith(_OF_ROWS) and not moves_rows", "name.startswith(_OF_ROWS)", "metadata_commit"),
    ("timeline/metadata_table/partitions", "        elif name in building:\n            raise being_built(name, where)\n", "", "metadata_commit"),
    ("timeline/metadata_table/update", "(update.upkeep, update.measure) != now", "False", "metadata_commit"),
    ("timeline/metadata_table/update", "len(records[BLOOM_FILTERS]) < _base_files(change.files)", "False", "metadata_commit"),
    ("timeline/metadata_table/update", "        commit.forget(table, instant)\n", "        pass\n", "metadata_faults"),
    ("timeline/metadata_table/update", "if types and _other_types(table, types):", "if False:", "metadata_commit"),
    ("timeline/metadata_table/column_range", "        high = math.nan\n", "        pass\n", "metadata_statistics"),
    # Clocks and zones.
    ("clock_evidence", "instant.completion_time or instant.requested_time", "instant.requested_time", "clock_evidence"),
    ("clock_evidence", "if len(chosen) < _FEW:", "if not chosen:", "clock_evidence"),
    ("clock_evidence", "one[0].action in _WRITES]", "True]", "clock_evidence"),
    ("clock_evidence", "one[0].completed and one[0].completion_time is None", "one[0].completion_time is None", "clock_evidence"),
    ("clock_evidence", "    if behind:\n", "    if behind and not here:\n", "clock_evidence"),
    ("clock_evidence", "    if here:\n", "    if False:\n", "clock_evidence"),
    ("clock_evidence", "(offset + early) // _STEP", "offset // _STEP", "clock_evidence"),
    ("clock_evidence", "abs(zone) > _FARTHEST or ", "", "clock_evidence"),
    ("clock_evidence", " or late > _LATE:", ":", "clock_evidence"),
    ("clock_evidence", ">= _MOVED and abs(a.late - b.late) <= gap / 2", ">= _MOVED", "clock_evidence"),
    ("clock_evidence", "close and len(seen) == of > 1", "close and len(seen) > 1", "clock_evidence"),
    ("clock_evidence", "close and len(seen) == of > 1", "close and len(seen) == of", "clock_evidence"),
    ("clock_evidence", "    return close and", "    return", "clock_evidence"),
    ("clock_guard", "(verdict.zone is Zone.AHEAD and not layout.has_completion_times)", "verdict.zone is Zone.AHEAD", "clock"),
    ("clock_guard", "verdict.zone is Zone.BEHIND or (", "False or (", "clock"),
    ("clock_guard", "    if seen.newest_ms and now_ms() - seen.newest_ms <= skew_ms:", "    if True:", "clock"),
    ("clock_guard", "        storage.delete(path)\n", "        pass\n", "clock"),
    ("clock_guard", "    if ahead_ms > options.clock_skew_s * 1000:", "    if False:", "clock"),
    ("clock_guard", "verdict.zone is Zone.AGREES and zones", "False", "clock"),
    ("table_clock", "            used.append(self.moment(unnamed.written_ms))\n", "", "clock"),
    ("mistimed", "(later and not slice_.logs)", "later", "clock"),
    ("mistimed", "(later and not slice_.logs)", "False", "clock"),
    ("mistimed", "elif later and time >= later[0].base_instant:", "elif False:", "clock"),
    ("mistimed", "if time < base.ljust(len(time), \"0\"):", "if False:", "clock"),
    ("mistimed", "entry.modified_ms != wanted", "False", "clock"),
    ("compactor_daemon/compactor", "        table.times.check_zone(view.timeline)\n", "        pass\n", "clock"),
    ("compactor_daemon/served_table", "            table.times.check_zone(timeline)\n", "            pass\n", "clock"),
    # Claims.
    ("compactor_daemon/zookeeper_claims", "                if not self._is_leftover(instant):\n                    return None\n", "                pass\n", "claims fleet"),
)  # fmt: skip


def copied(source: Path, target: Path) -> Path:
    """The packages a test run needs."""
    for package in ("timeline", "compactor_daemon", "writer_hooks", "tests"):
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    (target / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
    shutil.copy(source / "pyproject.toml", target)
    return target


def passes(folder: Path, tests: str) -> bool | None:
    """Whether the test modules pass there; None when they could not be run. Hanging is failing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    names = [f"test_{name}.py" for name in tests.split()]
    files = [str(path.relative_to(folder)) for name in names for path in (folder / "tests").rglob(name)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command + files, cwd=folder, env=environment, capture_output=True, timeout=RUN_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return {0: True, 1: False}.get(run.returncode)


def outcome(mutant: Mutant, snapshot: Path) -> str:
    """`killed`, `SURVIVED`, `stale` or `broken` (no test could run) for one mutant, in a copy of its own."""
    module, old, new, tests = mutant
    path = f"{module}.py" if "/" in module else f"timeline/{module}.py"
    source = (snapshot / path).read_text()
    if source.count(old) != 1:
        return "stale"
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(snapshot, Path(folder))
        (copy / path).write_text(source.replace(old, new))
        return {True: "SURVIVED", False: "killed", None: "broken"}[passes(copy, tests)]


def main(words: list[str]) -> int:
    """Runs the chosen mutants on a snapshot whose tests pass, two at a time; 1 unless all are killed."""
    chosen = [m for m in MUTANTS if not words or any(w in m[0] or w in m[1] for w in words)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        snapshot = copied(ROOT, Path(folder))
        if not passes(snapshot, " ".join(sorted({m[3] for m in chosen}))):
            print("the tests fail without any mutant: nothing can be said")
            return 1
        bad = 0
        for (module, old, new, _), result in zip(chosen, pool.map(lambda m: outcome(m, snapshot), chosen), strict=True):
            bad += result != "killed"
            print(f"{result:9} {module}: {old.strip()!r} -> {new.strip()!r}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
