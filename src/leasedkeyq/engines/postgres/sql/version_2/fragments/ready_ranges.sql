-- The first `p_many` available items of the queue `p_queue`, in order, of some kinds or of any. An
-- available item of priority 0 has a place below 0, or one from the floor on: what lies between is of
-- rows that were deleted, and is not walked over. The ranges that are not reached cost nothing. The
-- argument locks the rows, where they are to be leased.
SELECT * FROM (
    SELECT * FROM (
        SELECT ctid, key, id, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority > 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place LIMIT p_many
        --> argument
    ) above
    UNION ALL
    SELECT * FROM (
        SELECT ctid, key, id, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many
        --> argument
    ) in_front
    UNION ALL
    SELECT * FROM (
        SELECT ctid, key, id, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place >= p_floor
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many
        --> argument
    ) behind
    UNION ALL
    SELECT * FROM (
        SELECT ctid, key, id, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place LIMIT p_many
        --> argument
    ) below
) ready LIMIT p_many
