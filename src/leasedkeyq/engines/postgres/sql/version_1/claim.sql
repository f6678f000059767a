-- The rows that a claim leases, in order, in a queue of which it is known where to begin to look.
-- They are locked, and others do not wait for them.
CREATE FUNCTION lkq.ready_1(p_queue text, p_many int, p_floor bigint, p_kinds text[])
RETURNS SETOF tid
LANGUAGE plpgsql AS $$
DECLARE
    many int;
BEGIN
    RETURN QUERY
    SELECT ctid FROM lkq.items WHERE queue = p_queue AND state = 0 AND priority > 0
        AND (p_kinds IS NULL OR kind = ANY (p_kinds))
    ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS many = ROW_COUNT;
    p_many := p_many - many;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS many = ROW_COUNT;
        p_many := p_many - many;
    END IF;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place >= p_floor
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS many = ROW_COUNT;
        p_many := p_many - many;
    END IF;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items WHERE queue = p_queue AND state = 0 AND priority < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED;
    END IF;
END $$;

-- What a lost call has claimed, for its client.
CREATE FUNCTION lkq.claimed_1(p_queues text[], p_call text)
RETURNS TABLE (
    --> include columns/claimed
)
LANGUAGE sql
--> include settings
AS $$
    SELECT split_part(i.token, '.', 3)::int, i.queue, i.key, i.value, i.id, i.token, -i.turn,
        i.attempt, i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text
    FROM lkq.items i
    WHERE i.queue = ANY (p_queues) AND i.state = 2 AND i.turn < 0
        AND starts_with(i.token, p_call || '.')
    ORDER BY -i.turn
$$;
