-- Items of a queue: all those of some keys; or a page of them by their ids, behind `p_after`, or
-- with `p_newest_first` from there down. `p_end` is behind all keys that begin with `p_prefix`, if there is
-- such a text: of not too many such keys an index by key has the items, which are then sorted. If there are
-- more, a walk along the ids soon meets some of them. `FEW_OF_A_PREFIX` in Python says how many these are.
CREATE FUNCTION lkq.list_2(
    p_queue text, p_now float8, p_history int, p_states int[], p_prefix text, p_after bigint,
    p_limit bigint, p_keys text[], p_newest_first boolean, p_end text
) RETURNS TABLE (
    --> include columns/stored
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    few int := 5000;
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
    IF p_end IS NOT NULL AND few >= (
        SELECT count(*) FROM (
            SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key >= p_prefix AND i.key < p_end LIMIT few + 1
        ) f
    ) AND few >= (
        SELECT count(*) FROM (
            SELECT FROM lkq.line l WHERE l.queue = p_queue AND l.key >= p_prefix AND l.key < p_end LIMIT few + 1
        ) f
    ) AND few >= (
        SELECT count(*) FROM (
            SELECT FROM lkq.buried b
            WHERE b.queue || '' || '' = p_queue AND b.key >= p_prefix AND b.key < p_end LIMIT few + 1
        ) f
    ) AND few >= (
        SELECT count(*) FROM (
            SELECT FROM lkq.done d
            WHERE d.queue || '' || '' = p_queue AND d.key >= p_prefix AND d.key < p_end LIMIT few + 1
        ) f
    ) THEN
        RETURN QUERY
        SELECT * FROM (
            (SELECT
                --> include columns/item
            FROM lkq.items i WHERE i.queue = p_queue AND i.key >= p_prefix AND i.key < p_end
                AND i.state = ANY (p_states)
                AND CASE WHEN p_newest_first THEN i.id < p_after ELSE i.id > p_after END
            ORDER BY CASE WHEN p_newest_first THEN -i.id ELSE i.id END LIMIT p_limit)
            UNION ALL
            (SELECT
                --> include columns/in_line
            FROM lkq.line l WHERE l.queue = p_queue AND l.key >= p_prefix AND l.key < p_end
                AND CASE WHEN l.replaces THEN 3 ELSE 6 END = ANY (p_states)
                AND CASE WHEN p_newest_first THEN l.id < p_after ELSE l.id > p_after END
            ORDER BY CASE WHEN p_newest_first THEN -l.id ELSE l.id END LIMIT p_limit)
            UNION ALL
            (SELECT
                --> include columns/buried
            FROM lkq.buried b WHERE b.queue || '' || '' = p_queue AND b.key >= p_prefix AND b.key < p_end
                AND 4 = ANY (p_states)
                AND CASE WHEN p_newest_first THEN b.id < p_after ELSE b.id > p_after END
            ORDER BY CASE WHEN p_newest_first THEN -b.id ELSE b.id END LIMIT p_limit)
            UNION ALL
            (SELECT
                --> include columns/result
            FROM lkq.done d WHERE d.queue || '' || '' = p_queue AND d.key >= p_prefix AND d.key < p_end
                AND 5 = ANY (p_states) AND d.due > now_
                AND CASE WHEN p_newest_first THEN d.id < p_after ELSE d.id > p_after END
            ORDER BY CASE WHEN p_newest_first THEN -d.id ELSE d.id END LIMIT p_limit)
        ) listed ORDER BY CASE WHEN p_newest_first THEN -listed.id ELSE listed.id END LIMIT p_limit;
        RETURN;
    END IF;
    IF p_newest_first THEN
        RETURN QUERY
        SELECT * FROM (
            (SELECT
                --> include columns/item
            FROM (VALUES (0), (1), (2)) s (state) CROSS JOIN LATERAL (
                SELECT * FROM lkq.items f WHERE f.queue || '' = p_queue AND f.state = s.state
                    AND f.id < p_after AND starts_with(f.key, p_prefix)
                ORDER BY f.queue || '' DESC, f.state DESC, f.id DESC LIMIT p_limit
            ) i WHERE s.state = ANY (p_states))
            UNION ALL
            (SELECT
                --> include columns/in_line
            FROM (VALUES (true, 3), (false, 6)) s (replaces, state) CROSS JOIN LATERAL (
                SELECT * FROM lkq.line f WHERE f.queue || '' = p_queue AND f.replaces = s.replaces
                    AND f.id < p_after AND starts_with(f.key, p_prefix)
                ORDER BY f.queue || '' DESC, f.replaces DESC, f.id DESC LIMIT p_limit
            ) l WHERE s.state = ANY (p_states))
            UNION ALL
            (SELECT
                --> include columns/buried
            FROM lkq.buried b WHERE b.queue = p_queue AND b.id < p_after
                AND 4 = ANY (p_states) AND starts_with(b.key, p_prefix)
            ORDER BY b.queue DESC, b.id DESC LIMIT p_limit)
            UNION ALL
            (SELECT
                --> include columns/result
            FROM lkq.done d WHERE d.queue = p_queue AND d.id < p_after AND d.due > now_
                AND 5 = ANY (p_states) AND starts_with(d.key, p_prefix)
            ORDER BY d.queue DESC, d.id DESC LIMIT p_limit)
        ) listed ORDER BY 1 DESC LIMIT p_limit;
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
