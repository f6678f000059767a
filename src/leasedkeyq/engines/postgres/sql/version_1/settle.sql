-- Keep the results of an item that goes, and of the value beside it. Returns how many were kept.
CREATE FUNCTION lkq.keep_1(
    p_queue text, p_key text, p_due float8, p_outcome int, p_value bytea, p_item boolean,
    p_next boolean
) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lkq.done
    (id, queue, key, priority, attempt, put_at, due, outcome, history, kind, value)
    SELECT o.id, i.queue, i.key, o.priority, o.attempt, o.put_at, p_due, p_outcome, o.history,
        o.kind, p_value
    FROM lkq.items i CROSS JOIN LATERAL (VALUES
        (p_item, i.id, i.priority, i.attempt, i.put_at, i.history, i.kind),
        (p_next, i.next_id, i.next_priority, 0, i.next_put_at, NULL, i.next_kind)
    ) o (goes, id, priority, attempt, put_at, history, kind)
    WHERE i.queue = p_queue AND i.key = p_key AND o.goes;
    RETURN p_item::int + p_next::int;
END $$;

-- The acks that were not as simple as most: those whose numbers are not among `p_acked`. With
-- `p_keeps`, results are kept for so many seconds, with the outcome `p_outcome`. Returns the tally, the
-- numbers of those that are refused, and how many leases have ended.
CREATE FUNCTION lkq.ack_rest_1(
    INOUT t lkq.tallies, p_now float8, p_keys text[], p_tokens text[], p_acked int[],
    p_keeps float8[], p_results bytea[], p_outcome int, OUT refused int[], OUT ended int
) LANGUAGE plpgsql AS $$
DECLARE
    n int;
    r lkq.live_1;
BEGIN
    refused := '{}';
    ended := 0;
    FOR n IN
        SELECT generate_series(1, cardinality(p_keys)) EXCEPT SELECT unnest(p_acked) ORDER BY 1
    LOOP
        r := lkq.live_1(t.queue, p_keys[n]);
        IF r.due <= p_now OR r.token IS DISTINCT FROM p_tokens[n] THEN
            -- If it has expired, somebody who was changing it kept it from ending.
            refused := refused || n;
            CONTINUE;
        END IF;
        ended := ended + 1;
        IF p_keeps IS NOT NULL THEN
            PERFORM lkq.keep_1(
                t.queue, p_keys[n], p_now + p_keeps[n], p_outcome, p_results[n], true, false);
        END IF;
        IF r.next_id IS NULL THEN
            -- Somebody has changed its value just now.
            DELETE FROM lkq.items WHERE queue = t.queue AND key = p_keys[n];
        ELSE
            t.buffered := t.buffered - 1;
            r := lkq.follow_1(r, p_now);
            t := lkq.step_1(t, r.state, 1);
            PERFORM lkq.write_1(t.queue, p_keys[n], r);
        END IF;
    END LOOP;
END $$;
