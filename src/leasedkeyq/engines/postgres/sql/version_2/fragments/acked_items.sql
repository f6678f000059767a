-- Delete the items of the queue `q` that are acknowledged by `keys` and `tokens`. Most have no
-- line, and go by this; `ack_rest_1` sees to the others.
held AS MATERIALIZED (
    SELECT u.n, u.token, f.at
    FROM unnest(keys, tokens) WITH ORDINALITY u (key, token, n)
    CROSS JOIN LATERAL (
        SELECT i.ctid AS at FROM lkq.items i
        WHERE i.queue = q AND i.key = u.key AND i.token = u.token
            AND i.behind = 0 AND (i.due IS NULL OR i.due > now_)
        OFFSET 0
    ) f
),
--> include delete_acked
