-- What follows shows what is there, as of now: what has come due is dealt with first.

-- How many items of queues are in each state; of all queues if none are named.
CREATE FUNCTION lkq.count_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (
    queue text, available bigint, scheduled bigint, in_flight bigint, buried bigint, done bigint,
    done_failed bigint, done_cancelled bigint
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    q text;
BEGIN
    IF p_queues IS NULL THEN
        p_queues := ARRAY(
            SELECT queue FROM lkq.tallies
            UNION SELECT queue FROM (SELECT queue FROM lkq.inbox ORDER BY gate, number) b
            ORDER BY queue
        );
    END IF;
    PERFORM lkq.arrive_1(p_queues, now_, p_history);
    FOREACH q IN ARRAY p_queues LOOP
        RETURN QUERY SELECT q, sum(available + buffered)::bigint, sum(scheduled)::bigint,
            sum(in_flight)::bigint, sum(buried)::bigint, (sum(done) - max(old.many))::bigint,
            (sum(done_failed) - max(old.failed))::bigint,
            (sum(done_cancelled) - max(old.cancelled))::bigint
        FROM lkq.tallies, (
            SELECT count(*) AS many, count(*) FILTER (WHERE d.outcome = 1) AS failed,
                count(*) FILTER (WHERE d.outcome = 2) AS cancelled
            FROM lkq.done d WHERE d.queue || '' = q AND d.due <= now_
        ) old WHERE queue = q;
    END LOOP;
END $$;

-- Items of a queue: those of some keys, or a page of them by their ids, behind `p_after`.
CREATE FUNCTION lkq.list_1(
    p_queue text, p_now float8, p_history int, p_states int[], p_prefix text, p_after bigint,
    p_limit bigint, p_keys text[]
) RETURNS TABLE (
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
BEGIN
    PERFORM lkq.arrive_1(ARRAY[p_queue], now_, p_history);
    IF p_keys IS NOT NULL THEN
        RETURN QUERY
        SELECT
            --> include columns/item
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) i
        UNION ALL
        SELECT
            --> include columns/buffered
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) i
        WHERE i.next_id IS NOT NULL
        UNION ALL
        SELECT
            --> include columns/buried
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.buried f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) b
        WHERE 4 = ANY (p_states)
        UNION ALL
        SELECT
            --> include columns/result
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.done f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) d
        WHERE d.due > now_ AND 5 = ANY (p_states)
        ORDER BY 1;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT * FROM (
        (SELECT
            --> include columns/item
        -- Each state for itself: a look for the leased items does not walk over all that wait.
        FROM (VALUES (0), (1), (2)) s (state) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue || '' = p_queue AND f.state = s.state
                AND f.id > p_after AND starts_with(f.key, p_prefix)
            ORDER BY f.queue || '', f.state, f.id LIMIT p_limit
        ) i WHERE s.state = ANY (p_states))
        UNION ALL
        (SELECT
            --> include columns/buffered
        FROM lkq.items i WHERE i.queue = p_queue AND i.next_id > p_after AND i.next_id IS NOT NULL
            AND 3 = ANY (p_states) AND starts_with(i.key, p_prefix)
        ORDER BY i.queue, i.next_id LIMIT p_limit)
        UNION ALL
        (SELECT
            --> include columns/buried
        FROM lkq.buried b WHERE b.queue = p_queue AND b.id > p_after
            AND 4 = ANY (p_states) AND starts_with(b.key, p_prefix)
        ORDER BY b.queue, b.id LIMIT p_limit)
        UNION ALL
        (SELECT
            --> include columns/result
        FROM lkq.done d WHERE d.queue = p_queue AND d.id > p_after AND d.due > now_
            AND 5 = ANY (p_states) AND starts_with(d.key, p_prefix)
        ORDER BY d.queue, d.id LIMIT p_limit)
    ) listed ORDER BY 1 LIMIT p_limit;
END $$;

-- The next item of each queue, with the number of the queue.
CREATE FUNCTION lkq.heads_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (
    n int,
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
BEGIN
    PERFORM lkq.arrive_1(p_queues, lkq.now_1(p_now), p_history);
    FOR number IN 1..cardinality(p_queues) LOOP
        RETURN QUERY
        SELECT number,
            --> include columns/item
        FROM unnest(lkq.next_1(number, p_queues[number], 1, NULL, NULL)) c
        CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue = p_queues[number] AND f.key = c.key OFFSET 0
        ) i;
    END LOOP;
END $$;

-- The results of some items of a queue.
CREATE FUNCTION lkq.results_1(p_queue text, p_now float8, p_ids bigint[])
RETURNS TABLE (
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        --> include columns/result
    FROM unnest(p_ids) u (id) CROSS JOIN LATERAL (
        SELECT * FROM lkq.done f WHERE f.queue = p_queue AND f.id = u.id OFFSET 0
    ) d
    WHERE d.due > lkq.now_1(p_now);
END $$;
