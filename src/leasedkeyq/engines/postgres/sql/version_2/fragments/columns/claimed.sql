n int, queue text, key text, value bytea, id bigint, token text, fence bigint, attempt int,
priority bigint, expires_at float8, put_at float8, kind text, deadline float8, at text
