-- The rows that a claim leases, in order, in a queue of which it is known where to begin to look.
-- They are locked, and others do not wait for them.
CREATE FUNCTION lkq.ready_1(p_queue text, p_many int, p_floor bigint, p_kinds text[])
RETURNS SETOF tid
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT r.ctid FROM (
        --> include ready_ranges: FOR UPDATE SKIP LOCKED
    ) r;
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
