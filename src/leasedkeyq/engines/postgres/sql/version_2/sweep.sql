-- Deal with the items of a queue that have come due, each as of its own moment: a scheduled item becomes
-- available, and an expired lease ends. Rows that another call is changing right now are left to the
-- order in which the two commit.
CREATE FUNCTION lkq.advance_1(p_queue text, p_now float8, p_history int, p_floor float8)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    k text;
    r lkq.live_1;
    moment float8;
    t lkq.tallies := lkq.no_change_1(p_queue);
    again boolean := true;
    moved boolean := false;
    many int;
BEGIN
    WHILE again LOOP
        again := false;
        many := 0;
        FOR k, r.id, r.state, r.priority, r.place, r.turn, r.attempt, r.due, r.not_before, r.token,
            r.history, r.behind, r.line_from, r.next_id IN
            SELECT i.key,
                --> include columns/live
            FROM lkq.items i WHERE i.queue = p_queue AND i.due >= p_floor AND i.due <= p_now
            ORDER BY i.due, i.turn LIMIT 200 FOR UPDATE SKIP LOCKED
        LOOP
            many := many + 1;
            moment := r.due;
            t := lkq.step_1(t, r.state, -1);
            IF r.state = 1 THEN
                r := lkq.place_1(r, NULL, moment, false);
            ELSE
                r.history := lkq.remember_1(r.history, r.attempt, moment, 'expired', '', p_history);
                r := lkq.return_1(p_queue, k, r, NULL, true, moment);
                t.in_line := t.in_line - (r.next_id IS NOT NULL)::int;
            END IF;
            t := lkq.step_1(t, r.state, 1);
            PERFORM lkq.write_1(p_queue, k, r);
            IF r.due <= p_now THEN
                -- The item is scheduled for a moment that has come, too: its turn is among the rest.
                again := true;
                EXIT;
            END IF;
        END LOOP;
        moved := moved OR many > 0;
        again := again OR many = 200;
    END LOOP;
    PERFORM lkq.tally_1(t);
    RETURN moved;
END $$;

-- Apply all that has come due in these queues; called before reads. Returns the queues that changed.
-- With `p_tell` it first moves what is in the inbox, and then notifies. Without it the caller has
-- emptied the inbox and notifies by itself: emptying may wait for a lock, and a transaction that
-- already holds items must not do that.
CREATE FUNCTION lkq.arrive_1(
    p_queues text[], p_now float8, p_history int, p_tell boolean DEFAULT true
) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    q text;
    floor_ lkq.floors;
    moved text[] := '{}';
    gates bigint[] := ARRAY(SELECT lkq.lock_1('queue', n.q) FROM unnest(p_queues) n (q) ORDER BY 1);
BEGIN
    IF p_tell AND lkq.inbox_has_items_1(gates) THEN
        PERFORM pg_advisory_xact_lock_shared(n.gate) FROM unnest(gates) n (gate);
        moved := lkq.empty_inbox_1(gates, p_now);
    END IF;
    FOREACH q IN ARRAY p_queues LOOP
        floor_ := lkq.floor_1(q, p_now);
        IF EXISTS (SELECT FROM lkq.items WHERE queue = q AND due >= floor_.due AND due <= p_now) THEN
            PERFORM pg_advisory_xact_lock_shared(lkq.lock_1('queue', q));
            IF lkq.advance_1(q, p_now, p_history, floor_.due) AND q <> ALL (moved) THEN
                moved := moved || q;
            END IF;
        END IF;
    END LOOP;
    IF p_tell AND moved <> '{}' THEN
        PERFORM lkq.tell_1(moved);
    END IF;
    RETURN moved;
END $$;

-- Forget up to `p_most` results that are old, the oldest first. Returns how many.
CREATE FUNCTION lkq.forget_1(p_queue text, p_now float8, p_most int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    t lkq.tallies := lkq.no_change_1(p_queue);
BEGIN
    WITH gone AS (
        DELETE FROM lkq.done WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM lkq.done WHERE queue || '' = p_queue AND due <= p_now
            ORDER BY queue || '', due LIMIT p_most FOR UPDATE SKIP LOCKED
        )) RETURNING outcome
    )
    SELECT -count(*), -count(*) FILTER (WHERE outcome = 1), -count(*) FILTER (WHERE outcome = 2)
    INTO t.done, t.done_failed, t.done_cancelled FROM gone;
    PERFORM lkq.tally_1(t);
    RETURN -t.done;
END $$;

-- Deal with the items that are due, forget results that are old, and tell of each queue in how many
-- seconds the next item of it comes due.
CREATE FUNCTION lkq.sweep_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (queue text, seconds float8, moved boolean)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    arrived text[] := lkq.arrive_1(p_queues, now_, p_history);
    p_queue text;
    next_due float8;
BEGIN
    FOREACH p_queue IN ARRAY p_queues LOOP
        IF EXISTS (SELECT FROM lkq.done WHERE queue || '' = p_queue AND due <= now_) THEN
            PERFORM lkq.forget_1(p_queue, now_, 1000);
        END IF;
        IF EXISTS (
            SELECT FROM lkq.buckets WHERE queue || '' || '' = p_queue AND full_at <= now_
        ) THEN
            DELETE FROM lkq.buckets WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM lkq.buckets WHERE queue || '' || '' = p_queue AND full_at <= now_
                ORDER BY queue || '' || '', full_at LIMIT 1000 FOR UPDATE SKIP LOCKED
            ));
        END IF;
        SELECT min(due) INTO next_due FROM (
            (SELECT due FROM lkq.items
                WHERE queue = p_queue AND due >= (lkq.floor_1(p_queue, now_)).due
                ORDER BY due LIMIT 1)
            UNION ALL
            (SELECT due FROM lkq.done WHERE queue || '' = p_queue
                ORDER BY queue || '', due LIMIT 1)
            UNION ALL
            (SELECT next_at FROM lkq.buckets WHERE queue || '' = p_queue AND next_at > now_
                ORDER BY queue || '', next_at LIMIT 1)
        ) moments;
        RETURN QUERY SELECT p_queue,
            CASE WHEN next_due > now_ THEN next_due - now_ WHEN next_due <= now_ THEN 0 END,
            p_queue = ANY (arrived);
    END LOOP;
END $$;

-- Add up the tallies of a queue; forget results that are old, and calls that no client is going to
-- ask for. Returns the queues in which there may be more of it.
CREATE FUNCTION lkq.tidy_1(p_queues text[], p_now float8, p_from text, p_before text)
RETURNS text[]
LANGUAGE plpgsql
--> include settings
AS $$
DECLARE
    q text;
    now_ float8 := lkq.now_1(p_now);
    most int := 5000;
    untidy text[] := '{}';
BEGIN
    -- A call that was stopped may still be on its way.
    DELETE FROM lkq.calls WHERE call >= p_from AND call < p_before AND answers IS NOT NULL;
    DELETE FROM lkq.calls WHERE at < extract(epoch FROM now()) - 3600;
    FOREACH q IN ARRAY p_queues LOOP
        IF lkq.forget_1(q, now_, most) = most THEN
            untidy := untidy || q;
        END IF;
        WITH old AS (
            DELETE FROM lkq.tallies WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM lkq.tallies WHERE queue = q FOR UPDATE SKIP LOCKED
            )) RETURNING *
        )
        INSERT INTO lkq.tallies (queue, available, in_line, scheduled, in_flight, buried, done,
            done_failed, done_cancelled, held)
        SELECT q, a, l, s, i, u, d, f, c, h FROM (
            SELECT sum(available) a, sum(in_line) l, sum(scheduled) s, sum(in_flight) i,
                sum(buried) u, sum(done) d, sum(done_failed) f, sum(done_cancelled) c,
                sum(held) h FROM old
        ) new
        WHERE a <> 0 OR l <> 0 OR s <> 0 OR i <> 0 OR u <> 0 OR d <> 0 OR f <> 0 OR c <> 0
            OR h <> 0;
    END LOOP;
    RETURN untidy;
END $$;
