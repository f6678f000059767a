d.id, d.key, 5, d.value, d.priority, d.attempt, d.put_at, 0::bigint, d.due, '',
d.history::text, d.kind, NULL::float8, NULL, NULL::float8, d.outcome::int, d.ended_at, false
