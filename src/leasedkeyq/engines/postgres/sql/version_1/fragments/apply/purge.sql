-- Remove a part of a queue, and answer how many items that were. What is removed is counted by state, as
-- the tally has to change by that. A result that is too old to be shown is not among those, but it is in
-- the tally until its row goes.
size := 0;
IF run->>'part' IN ('buried', 'all') THEN
    DELETE FROM lkq.buried WHERE queue = q;
    GET DIAGNOSTICS many = ROW_COUNT;
    t.buried := t.buried - many;
    size := size + many;
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
IF run->>'part' = 'all' THEN
    FOR one IN
        WITH gone AS (
            DELETE FROM lkq.items WHERE queue = q RETURNING state, next_id
        )
        SELECT state, count(*) AS many, count(next_id) AS beside FROM gone
        GROUP BY state
    LOOP
        t := lkq.step_1(t, one.state, -one.many);
        t.buffered := t.buffered - one.beside;
        size := size + one.many + one.beside;
    END LOOP;
END IF;
hot := hot OR size > 0;
said := said || jsonb_build_array(first, 'is', size);
