-- Remove a part of a queue, and answer how many items that were. What is removed is counted by state, as
-- the tally has to change by that. A result that is too old to be shown is not among those, but it is in
-- the tally until its row goes.
size := 0;
IF run->>'part' = 'all' THEN
    keys := '{}';
    FOR one IN
        WITH gone AS (
            DELETE FROM lkq.items WHERE queue = q RETURNING state, key, behind
        )
        SELECT state, count(*) AS many, sum(behind) AS behind,
            array_agg(key) FILTER (WHERE behind > 0) AS lined
        FROM gone GROUP BY state
    LOOP
        IF one.state = -1 THEN
            t.held := t.held - one.behind; -- and the heads are among the buried
        ELSE
            t := lkq.step_1(t, one.state, -one.many);
            t.in_line := t.in_line - one.behind;
            size := size + one.many;
        END IF;
        size := size + one.behind;
        keys := keys || one.lined;
    END LOOP;
    -- Only the lines of these: until this transaction has ended, no call can put their keys again.
    DELETE FROM lkq.line l USING unnest(keys) u (key) WHERE l.queue = q AND l.key = u.key;
    DELETE FROM lkq.buried WHERE queue = q;
    GET DIAGNOSTICS many = ROW_COUNT;
    t.buried := t.buried - many;
    size := size + many;
ELSIF run->>'part' = 'buried' THEN
    size := t.buried;
    FOR was IN
        SELECT b.id FROM lkq.buried b WHERE b.queue || '' = q AND b.holds
        ORDER BY b.queue || '', b.number
    LOOP
        one := lkq.unbury_1(t, was.id, now_);
        t := one.t;
    END LOOP;
    DELETE FROM lkq.buried WHERE queue = q AND NOT holds;
    GET DIAGNOSTICS many = ROW_COUNT;
    t.buried := t.buried - many;
    size := size - t.buried;
END IF;
IF run->>'part' IN ('results', 'all') THEN
    FOR one IN
        WITH gone AS (
            DELETE FROM lkq.done WHERE queue = q RETURNING outcome, due > now_ AS kept
        )
        SELECT outcome, count(*) AS many, count(*) FILTER (WHERE kept) AS kept FROM gone
        GROUP BY outcome
    LOOP
        t := lkq.step_done_1(t, one.outcome, -one.many);
        size := size + one.kept;
    END LOOP;
END IF;
hot := hot OR size > 0;
said := said || jsonb_build_array(first, 'is', size);
