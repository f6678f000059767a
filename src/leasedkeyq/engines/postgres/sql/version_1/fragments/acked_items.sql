-- Delete the items of the queue `q` that are acknowledged by `keys` and `tokens`. Most have nothing
-- beside them, and go by this; `ack_rest_1` sees to the others.
held AS MATERIALIZED (
    SELECT u.n, u.token, f.at
    FROM unnest(keys, tokens) WITH ORDINALITY u (key, token, n)
    CROSS JOIN LATERAL (
        SELECT i.ctid AS at FROM lkq.items i
        WHERE i.queue = q AND i.key = u.key AND i.token = u.token
            AND i.next_id IS NULL AND (i.due IS NULL OR i.due > now_)
        OFFSET 0
    ) f
), gone AS (
    -- Somebody may have put a value beside it just now: what was seen must still hold.
    DELETE FROM lkq.items i USING held h
    WHERE i.ctid = h.at AND i.token = h.token AND i.next_id IS NULL
    RETURNING h.n, i.id, i.queue, i.key, i.priority, i.attempt, i.put_at, i.history, i.kind
)
