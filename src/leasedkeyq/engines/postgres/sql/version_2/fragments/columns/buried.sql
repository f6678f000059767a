b.id, b.key, 4, b.value, b.priority, b.attempt, b.put_at, 0::bigint, NULL::float8, b.error,
b.history::text, b.kind, NULL::float8, NULL, NULL::float8, NULL::int, NULL::float8, b.holds
