id bigint, key text, state int, value bytea, priority bigint, attempt int, put_at float8,
place bigint, due float8, error text, history text, kind text, leased_at float8, token text,
deadline float8, outcome int, ended_at float8, holds boolean
