l.id, l.key, CASE WHEN l.replaces THEN 3 ELSE 6 END, l.value, l.priority, 0, l.put_at, 0::bigint,
l.not_before, '', NULL, l.kind, NULL::float8, NULL, l.deadline, NULL::int, NULL::float8, false
