-- The acks that were not as simple as most: those whose numbers are not among `p_acked`. With
-- `p_keeps`, results are kept for so many seconds, with the outcome `p_outcome`. Returns the tally, the
-- numbers of those that are refused, and how many leases have ended.
CREATE FUNCTION lkq.ack_rest_1(
    INOUT t lkq.tallies, now_ float8, p_keys text[], p_tokens text[], p_acked int[],
    p_keeps float8[], p_results bytea[], p_outcome int, OUT refused int[], OUT ended int
) LANGUAGE plpgsql AS $$
DECLARE
    rest int[] := ARRAY(
        SELECT generate_series(1, cardinality(p_keys)) EXCEPT SELECT unnest(p_acked) ORDER BY 1
    );
    held int[]; -- those of the rest whose leases hold
    lined text[]; -- the keys of these that have a line
    tids tid[]; -- where the others are
BEGIN
    -- The rows are locked in the order of their keys, as by `hold_items`, and what is seen of them is the
    -- latest. If a lease has expired, another call was changing the row when that was dealt with.
    SELECT coalesce(array_agg(h.n ORDER BY h.n), '{}'),
        array_agg(h.key ORDER BY h.n) FILTER (WHERE h.behind > 0),
        array_agg(h.at) FILTER (WHERE h.behind = 0)
    INTO held, lined, tids
    FROM (
        SELECT u.n, u.key, f.behind, f.at FROM (
            SELECT r.n, p_keys[r.n] AS key, p_tokens[r.n] AS token FROM unnest(rest) r (n) ORDER BY 2
        ) u
        CROSS JOIN LATERAL (
            SELECT i.behind, i.due, i.ctid AS at FROM lkq.items i
            WHERE i.queue = t.queue AND i.key = u.key AND i.token = u.token
            OFFSET 0 FOR UPDATE -- and only then is looked at the time
        ) f
        WHERE f.due IS NULL OR f.due > now_
    ) h;
    ended := cardinality(held);
    refused := ARRAY(SELECT unnest(rest) EXCEPT SELECT unnest(held) ORDER BY 1);
    IF p_keeps IS NOT NULL THEN
        WITH ended AS (
            SELECT i.*, now_ + p_keeps[u.n] AS due, p_outcome AS outcome, p_results[u.n] AS value
            FROM unnest(held) u (n)
            CROSS JOIN LATERAL (
                SELECT f.id, f.queue, f.key, f.priority, f.attempt, f.put_at, f.history, f.kind
                FROM lkq.items f WHERE f.queue = t.queue AND f.key = p_keys[u.n] OFFSET 0
            ) i
        )
        --> include insert_results
        ;
    END IF;
    -- Some need have no line: a put may have changed the value of the item just now.
    IF tids IS NOT NULL THEN
        DELETE FROM lkq.items i WHERE i.ctid = ANY (tids);
    END IF;
    IF lined IS NOT NULL THEN
        t := lkq.promote_1(t, lined, now_);
    END IF;
END $$;

-- Remove a buried item; if it held its key, the first of the line of that begins anew. The row of the key
-- is locked before that of the item, as by a call that removes the key.
CREATE FUNCTION lkq.unbury_1(INOUT t lkq.tallies, p_id bigint, now_ float8, OUT gone boolean)
LANGUAGE plpgsql AS $$
DECLARE
    q text := t.queue;
    k text;
    r lkq.live_1;
    held boolean;
BEGIN
    SELECT key INTO k FROM lkq.buried WHERE queue = q AND id = p_id AND holds;
    IF k IS NOT NULL THEN
        r := lkq.live_1(q, k);
    END IF;
    DELETE FROM lkq.buried WHERE queue = q AND id = p_id RETURNING holds INTO held;
    gone := held IS NOT NULL;
    t.buried := t.buried - gone::int;
    IF held THEN
        t.held := t.held - r.behind;
        t.in_line := t.in_line + r.behind;
        --> include end_item
    END IF;
END $$;
