-- Keep the results of an item that goes, and of the value beside it. Returns how many were kept.
CREATE FUNCTION lkq.keep_1(
    p_queue text, p_key text, p_due float8, p_outcome int, p_value bytea, p_item boolean,
    p_next boolean
) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    WITH ended AS (
        SELECT o.id, i.queue, i.key, o.priority, o.attempt, o.put_at, p_due AS due,
            p_outcome AS outcome, o.history, o.kind, p_value AS value
        FROM lkq.items i CROSS JOIN LATERAL (VALUES
            (p_item, i.id, i.priority, i.attempt, i.put_at, i.history, i.kind),
            (p_next, i.next_id, i.next_priority, 0, i.next_put_at, NULL, i.next_kind)
        ) o (goes, id, priority, attempt, put_at, history, kind)
        WHERE i.queue = p_queue AND i.key = p_key AND o.goes
    )
    --> include insert_results
    ;
    RETURN p_item::int + p_next::int;
END $$;

-- The acks that were not as simple as most: those whose numbers are not among `p_acked`. With
-- `p_keeps`, results are kept for so many seconds, with the outcome `p_outcome`. Returns the tally, the
-- numbers of those that are refused, and how many leases have ended.
CREATE FUNCTION lkq.ack_rest_1(
    INOUT t lkq.tallies, now_ float8, p_keys text[], p_tokens text[], p_acked int[],
    p_keeps float8[], p_results bytea[], p_outcome int, OUT refused int[], OUT ended int
) LANGUAGE plpgsql AS $$
DECLARE
    q text := t.queue;
    k text;
    n int;
    r lkq.live_1;
BEGIN
    refused := '{}';
    ended := 0;
    FOR n IN
        SELECT generate_series(1, cardinality(p_keys)) EXCEPT SELECT unnest(p_acked) ORDER BY 1
    LOOP
        k := p_keys[n];
        r := lkq.live_1(q, k);
        IF r.due <= now_ OR r.token IS DISTINCT FROM p_tokens[n] THEN
            -- If the lease has expired, another call was changing the row when that was dealt with.
            refused := refused || n;
            CONTINUE;
        END IF;
        ended := ended + 1;
        IF p_keeps IS NOT NULL THEN
            PERFORM lkq.keep_1(
                q, k, now_ + p_keeps[n], p_outcome, p_results[n], true, false);
        END IF;
        -- Nothing need be buffered: a put may have changed the value of the item just now.
        --> include end_item
    END LOOP;
END $$;
