-- Claims by urgency. The server ranks the items and leases them in one call. To rank above the engines,
-- by `heads`, and then claim the keys was measured with 20 queues and claims of 10 items: four workers
-- lease 470 items a second so, as they choose the same keys, and 850 by this. (One worker alone: 890 and
-- 660. But to rank the heads alone is not enough, if a queue has several of the most urgent items.)

-- How many levels an item is up, whose own deadline is p_due, in a queue with p_deadline and steps;
-- more than any number of levels if that is past.
CREATE FUNCTION lkq.lift_1(
    p_now float8, p_put_at float8, p_due float8, p_deadline float8, p_shares float8[], p_ups bigint[]
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN coalesce(p_due, p_put_at + p_deadline) IS NULL THEN 0
        WHEN coalesce(p_due, p_put_at + p_deadline) <= p_now
            OR coalesce(p_due, p_put_at + p_deadline) <= p_put_at THEN 9223372036854775807
        ELSE coalesce((
            SELECT max(s.up) FROM unnest(p_shares, p_ups) s (share, up)
            WHERE (coalesce(p_due, p_put_at + p_deadline) - p_now)
                / (coalesce(p_due, p_put_at + p_deadline) - p_put_at) <= s.share
        ), 0)
    END
$$;

-- Whether a deadline can bring an item of a queue forward: an available one has its own.
CREATE FUNCTION lkq.hurried_1(p_queue text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM lkq.items WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
    );
END $$;

-- An item that a claim by urgency may lease: the number of its queue, and its own number there.
CREATE TYPE lkq.candidate_1 AS (
    number int, n int, key text, id bigint, put_at float8, deadline float8
);

-- The next items of a queue, of some kinds or of a key, in order. They are not locked.
CREATE FUNCTION lkq.next_1(p_number int, p_queue text, p_many int, p_kinds text[], p_key text)
RETURNS lkq.candidate_1[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    p_floor bigint := (lkq.floor_1(p_queue, 'infinity')).place;
BEGIN
    IF p_key IS NOT NULL THEN
        RETURN ARRAY(
            SELECT (p_number, 1, key, id, put_at, deadline)::lkq.candidate_1 FROM lkq.items
            WHERE queue = p_queue AND key = p_key AND state + 0 = 0
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        );
    END IF;
    RETURN ARRAY(
        SELECT (p_number, row_number() OVER (), key, id, put_at, deadline)::lkq.candidate_1 FROM (
            --> include ready_ranges
        ) i
    );
END $$;

-- The same, where deadlines bring items forward. Two lines, by place and by deadline, are merged: of
-- their heads, the one that is up more is next, and of two that are alike the first by place. An item
-- that was taken from one line is passed over in the other: it is not in the way of those behind it.
CREATE FUNCTION lkq.merged_1(
    p_now float8, p_number int, p_queue text, p_many int, p_kinds text[], p_key text,
    p_deadline float8, p_shares float8[], p_ups bigint[]
) RETURNS lkq.candidate_1[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    firsts lkq.candidate_1[] := lkq.next_1(p_number, p_queue, p_many, p_kinds, p_key);
    nearests lkq.candidate_1[];
    first_ups bigint[];
    near_ups bigint[];
    as_near int[]; -- where the first ones are in the line by deadline, and the other way round
    as_first int[];
    f int := 1; -- all before these were taken
    d int := 1;
    line lkq.candidate_1[] := '{}';
    one lkq.candidate_1;
BEGIN
    IF p_key IS NOT NULL OR NOT lkq.hurried_1(p_queue) THEN
        RETURN firsts;
    END IF;
    nearests := ARRAY(
        SELECT (p_number, row_number() OVER (ORDER BY deadline, id), key, id, put_at, deadline
            )::lkq.candidate_1
        FROM (
            SELECT key, id, put_at, deadline FROM lkq.items
            WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY deadline, id LIMIT p_many
        ) nearest
    );
    SELECT array_agg(up ORDER BY n) FILTER (WHERE by_place),
        array_agg(near ORDER BY n) FILTER (WHERE by_place),
        array_agg(up ORDER BY n) FILTER (WHERE NOT by_place),
        array_agg(place ORDER BY n) FILTER (WHERE NOT by_place)
    INTO first_ups, as_near, near_ups, as_first
    FROM (
        SELECT by_place, n,
            lkq.lift_1(p_now, put_at, deadline, p_deadline, p_shares, p_ups) AS up,
            min(n) FILTER (WHERE by_place) OVER (PARTITION BY id) AS place,
            min(n) FILTER (WHERE NOT by_place) OVER (PARTITION BY id) AS near
        FROM (
            SELECT true AS by_place, * FROM unnest(firsts)
            UNION ALL SELECT false, * FROM unnest(nearests)
        ) both_lines
    ) lifted;
    WHILE cardinality(line) < p_many LOOP
        WHILE as_near[f] < d LOOP
            f := f + 1;
        END LOOP;
        EXIT WHEN f > cardinality(firsts);
        WHILE as_first[d] < f LOOP
            d := d + 1;
        END LOOP;
        IF near_ups[d] > first_ups[f] THEN
            one := nearests[d];
            d := d + 1;
        ELSE
            one := firsts[f];
            f := f + 1;
        END IF;
        one.n := cardinality(line) + 1;
        line := line || one;
    END LOOP;
    RETURN line;
END $$;

-- What a claim by urgency leases: the numbers of the queues, counted from 1, and the rows, in order.
-- Only these are locked, one after the other. Items that another claim is just leasing are passed over.
CREATE FUNCTION lkq.urgent_1(p_now float8, p_run jsonb) RETURNS TABLE (number int, at tid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    total int := (p_run->>'limit')::int;
    kinds text[] := CASE WHEN p_run ? 'kinds'
        THEN ARRAY(SELECT jsonb_array_elements_text(p_run->'kinds')) END;
    queues jsonb[] := ARRAY(SELECT jsonb_array_elements(p_run->'queues'));
    size int := cardinality(queues);
    in_flight bigint := coalesce((p_run->>'in_flight')::bigint, 0);
    priorities bigint[] := ARRAY(SELECT (q->>'priority')::bigint FROM unnest(queues) q);
    deadlines float8[] := ARRAY(SELECT (q->>'deadline')::float8 FROM unnest(queues) q);
    boosts boolean[] := ARRAY(
        SELECT q->>'deadline' IS NOT NULL OR q->'steps' <> '[]' FROM unnest(queues) q
    );
    steps int[]; -- of which queue each step is, from which share on, and how many levels up
    shares float8[];
    ups bigint[];
    mosts int[] := ARRAY(SELECT (q->>'most')::int FROM unnest(queues) q);
    manys int[] := array_fill(least(total, total / size + 10), ARRAY[size]);
    candidates lkq.candidate_1[];
    taken int[];
    numbers int[];
    tids tid[];
    one record;
    found_at tid;
    more boolean := true;
BEGIN
    SELECT array_agg(q.n), array_agg((s->>0)::float8), array_agg((s->>1)::bigint)
    INTO steps, shares, ups
    FROM unnest(queues) WITH ORDINALITY q (queue, n)
    CROSS JOIN LATERAL jsonb_array_elements(q.queue->'steps') s;
    WHILE more LOOP
        more := false;
        candidates := '{}';
        taken := array_fill(0, ARRAY[size]);
        numbers := '{}';
        tids := '{}';
        FOR q IN 1..size LOOP
            IF queues[q] ? 'caps' THEN
                BEGIN
                    -- Nothing is locked and no token is taken before it is known which are leased.
                    tids := lkq.capped_1(p_now, queues[q]->>'queue', least(mosts[q], manys[q]),
                        p_run->>'key', kinds, queues[q]->'caps', in_flight, boosts[q],
                        --> include steps_of_queue
                    );
                    RAISE EXCEPTION USING ERRCODE = 'LKQ01';
                EXCEPTION WHEN SQLSTATE 'LKQ01' THEN
                    candidates := candidates || ARRAY(
                        SELECT (q, u.n, i.key, i.id, i.put_at, i.deadline)::lkq.candidate_1
                        FROM unnest(tids) WITH ORDINALITY u (at, n)
                        CROSS JOIN LATERAL (SELECT * FROM lkq.items f WHERE f.ctid = u.at) i
                    );
                    tids := '{}';
                END;
            ELSIF boosts[q] THEN
                candidates := candidates || lkq.merged_1(
                    p_now, q, queues[q]->>'queue', manys[q], kinds, p_run->>'key',
                    --> include steps_of_queue
                );
            ELSE
                candidates := candidates
                    || lkq.next_1(q, queues[q]->>'queue', manys[q], kinds, p_run->>'key');
            END IF;
        END LOOP;
        -- It is the turn of a queue when that of its next item has come. So an item that is more
        -- urgent than those before it comes right behind them.
        FOR one IN
            SELECT number, n, key, id FROM (
                SELECT number, n, key, id, max(rank) OVER (PARTITION BY number ORDER BY n) AS turn
                FROM (
                    SELECT c.number, c.n, c.key, c.id, row_number() OVER (
                        ORDER BY u.late DESC, priorities[c.number] - CASE WHEN u.late THEN 0
                            ELSE coalesce((
                                SELECT max(s.up) FROM unnest(steps, shares, ups) s (number, share, up)
                                WHERE s.number = c.number
                                    AND (d.due - p_now) / (d.due - c.put_at) <= s.share
                            ), 0) END, c.put_at, c.id
                    ) AS rank
                    FROM unnest(candidates) c
                    CROSS JOIN LATERAL (
                        SELECT CASE WHEN boosts[c.number]
                            THEN coalesce(c.deadline, c.put_at + deadlines[c.number]) END AS due
                    ) d
                    CROSS JOIN LATERAL (
                        SELECT coalesce(d.due <= p_now OR d.due <= c.put_at, false) AS late
                    ) u
                ) ranked
            ) turns ORDER BY turn, n
        LOOP
            CONTINUE WHEN taken[one.number] >= mosts[one.number];
            SELECT ctid INTO found_at FROM lkq.items
            WHERE queue = queues[one.number]->>'queue' AND key = one.key AND id = one.id
                AND state + 0 = 0
            FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                taken[one.number] := taken[one.number] + 1;
                numbers := numbers || one.number;
                tids := tids || found_at;
                EXIT WHEN cardinality(tids) >= total;
            END IF;
            IF one.n = manys[one.number] AND taken[one.number] < mosts[one.number] THEN
                -- What is behind it may be the next one. All that was locked is leased in any case.
                manys[one.number] := greatest(total, one.n * 4);
                more := true;
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
    FOR q IN 1..size LOOP
        IF queues[q] ? 'caps' AND taken[q] > 0 THEN
            PERFORM lkq.capped_1(p_now, queues[q]->>'queue', taken[q], p_run->>'key', kinds,
                queues[q]->'caps', in_flight, boosts[q],
                --> include steps_of_queue
            );
        END IF;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(numbers, tids);
END $$;
