-- What follows shows what is there, as of now: what has come due is dealt with first.

-- How many items of queues are in each state; of all queues if none are named.
CREATE FUNCTION lkq.count_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (
    queue text, available bigint, scheduled bigint, in_flight bigint, buried bigint, done bigint,
    done_failed bigint, done_cancelled bigint, held bigint
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
        RETURN QUERY SELECT q, sum(available + in_line)::bigint, sum(scheduled)::bigint,
            sum(in_flight)::bigint, sum(buried)::bigint, (sum(done) - max(old.many))::bigint,
            (sum(done_failed) - max(old.failed))::bigint,
            (sum(done_cancelled) - max(old.cancelled))::bigint, sum(held)::bigint
        FROM lkq.tallies, (
            SELECT count(*) AS many, count(*) FILTER (WHERE d.outcome = 1) AS failed,
                count(*) FILTER (WHERE d.outcome = 2) AS cancelled
            FROM lkq.done d WHERE d.queue || '' = q AND d.due <= now_
        ) old WHERE queue = q;
    END LOOP;
END $$;

-- Items of a queue: all those of some keys, or a page of them by their ids, behind `p_after`.
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
        WHERE i.state <> -1
        UNION ALL
        SELECT
            --> include columns/in_line
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.line f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) l
        -- An edit of heads does not read lines, which may be long.
        WHERE 6 = ANY (p_states)
        UNION ALL
        SELECT
            --> include columns/buried
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.buried f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) b
        UNION ALL
        SELECT
            --> include columns/result
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.done f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) d
        WHERE d.due > now_
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
            --> include columns/in_line
        FROM (VALUES (true, 3), (false, 6)) s (replaces, state) CROSS JOIN LATERAL (
            SELECT * FROM lkq.line f WHERE f.queue || '' = p_queue AND f.replaces = s.replaces
                AND f.id > p_after AND starts_with(f.key, p_prefix)
            ORDER BY f.queue || '', f.replaces, f.id LIMIT p_limit
        ) l WHERE s.state = ANY (p_states))
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

-- The head of a key and its line, in the order of their ids: a page of them, behind `p_after`.
CREATE FUNCTION lkq.line_1(
    p_queue text, p_now float8, p_history int, p_key text, p_after bigint, p_limit bigint
) RETURNS TABLE (
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
BEGIN
    PERFORM lkq.arrive_1(ARRAY[p_queue], lkq.now_1(p_now), p_history);
    RETURN QUERY
    SELECT * FROM (
        (SELECT
            --> include columns/item
        FROM lkq.items i WHERE i.queue = p_queue AND i.key = p_key AND i.state + 0 <> -1
            AND i.id > p_after)
        UNION ALL
        (SELECT
            --> include columns/in_line
        FROM lkq.line l WHERE l.queue = p_queue AND l.key = p_key AND l.id > p_after
        ORDER BY l.queue, l.key, l.id LIMIT p_limit)
    ) listed ORDER BY 1 LIMIT p_limit;
END $$;

-- The heads of some keys, each with the first of its line. A held key has no head to be shown.
CREATE FUNCTION lkq.look_1(p_queue text, p_now float8, p_history int, p_keys text[])
RETURNS TABLE (
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
BEGIN
    PERFORM lkq.arrive_1(ARRAY[p_queue], lkq.now_1(p_now), p_history);
    RETURN QUERY
    SELECT
        --> include columns/item
    FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
        SELECT * FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
    ) i
    WHERE i.state <> -1
    UNION ALL
    SELECT
        --> include columns/in_line
    FROM (SELECT p_queue AS queue) t, unnest(p_keys) u (key) CROSS JOIN LATERAL (
        SELECT coalesce(f.line_from, f.id) AS line_from FROM lkq.items f
        WHERE f.queue = p_queue AND f.key = u.key AND f.behind > 0 OFFSET 0
    ) h CROSS JOIN LATERAL (
        --> include first_in_line
    ) l;
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
