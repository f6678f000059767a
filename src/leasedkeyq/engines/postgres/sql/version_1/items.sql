-- What the store does, in the server: one call, one round trip and one transaction for a batch.
-- "lkq" stands for the schema that the store was given. It mirrors `leasedkeyq.model.state` and
-- `StoreModel`; tests compare their answers. A function that others call is never changed once it
-- was released: a new version gets a new name, so that old and new workers work side by side.
--
-- What is not a statement but an expression, such as `void_function() IS NULL`, costs a fraction. A
-- function of one expression in the language `sql` costs nothing: the planner puts it where it is called.
--
-- The settings at the functions are for their statements: each is a walk along an index, whatever
-- the statistics say of a table that was empty a moment ago. Where a row is looked up by its key,
-- `state + 0` keeps the index of the available ones out of it.

-- A live row, without its values.
CREATE TYPE lkq.live_1 AS (
    id bigint, state int, priority bigint, place bigint, turn bigint, attempt int,
    due float8, not_before float8, token text, history jsonb,
    next_id bigint, next_priority bigint, next_not_before float8, replaced boolean
);

-- The number of an advisory lock; `lock_number` in Python says the same.
CREATE FUNCTION lkq.lock_1(p_sort text, p_queue text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ('x' || substr(md5('lkq' || '/' || p_sort || '/' || p_queue), 1, 16))::bit(64)::bigint
$$;

-- The time of the store: the server's, unless a test has brought its own.
CREATE FUNCTION lkq.now_1(p_now float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::float8)
$$;

-- Tell the stores that listen which queues have changed; an empty list stands for all. A transaction that
-- tells holds a lock of the whole server until its commit is on the disk: two workers would have a
-- tenth more done without it (40,000 commands a second instead of 37,000). But workers
-- wait for the room that acks and claims leave, and for items that come due.
CREATE FUNCTION lkq.tell_1(p_queues text[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('lkq', CASE WHEN octet_length(to_json(p_queues)::text) < 7900
        THEN to_json(p_queues)::text ELSE '[]' END)
$$;

-- What a call changes in the tallies of a queue is added up in a row of that table, which begins as
-- this one.
CREATE FUNCTION lkq.no_change_1(p_queue text) RETURNS lkq.tallies LANGUAGE sql IMMUTABLE AS $$
    SELECT (0, 0, 0, 0, 0, 0, 0, 0, p_queue)::lkq.tallies
$$;

-- Write down what a call has changed in the tallies of a queue.
CREATE FUNCTION lkq.tally_1(t lkq.tallies) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF t.queue IS NOT NULL AND t IS DISTINCT FROM lkq.no_change_1(t.queue) THEN
        INSERT INTO lkq.tallies SELECT t.*;
    END IF;
END $$;

-- A tally when so many items more are in a state, or less.
CREATE FUNCTION lkq.step_1(t lkq.tallies, p_state int, p_step bigint) RETURNS lkq.tallies
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_state = 0 THEN
        t.available := t.available + p_step;
    ELSIF p_state = 1 THEN
        t.scheduled := t.scheduled + p_step;
    ELSE
        t.in_flight := t.in_flight + p_step;
    END IF;
    RETURN t;
END $$;

-- A tally when there are so many results of an outcome more, or less.
CREATE FUNCTION lkq.step_done_1(t lkq.tallies, p_outcome int, p_step bigint) RETURNS lkq.tallies
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    t.done := t.done + p_step;
    IF p_outcome = 1 THEN
        t.done_failed := t.done_failed + p_step;
    ELSIF p_outcome = 2 THEN
        t.done_cancelled := t.done_cancelled + p_step;
    END IF;
    RETURN t;
END $$;

-- The history of an item when one more lease of it has ended.
CREATE FUNCTION lkq.remember_1(
    p_past jsonb, p_attempt int, p_moment float8, p_how text, p_error text, p_most int
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    kept jsonb;
BEGIN
    IF p_most <= 0 THEN
        RETURN NULL;
    END IF;
    kept := coalesce(p_past, '[]') || jsonb_build_array(jsonb_build_object(
        'number', p_attempt, 'ended_at', p_moment, 'how', p_how, 'error', p_error
    ));
    WHILE jsonb_array_length(kept) > p_most LOOP
        kept := kept - 0;
    END LOOP;
    RETURN kept;
END $$;

-- Give an item its place, or schedule it: behind all others, or in a place that was kept for it.
CREATE FUNCTION lkq.place_1(
    r lkq.live_1, p_due float8, p_moment float8, p_front boolean, p_place bigint DEFAULT NULL
) RETURNS lkq.live_1 LANGUAGE plpgsql AS $$
BEGIN
    IF p_due > p_moment THEN
        r.state := 1;
        r.due := p_due;
        r.turn := coalesce(p_place, nextval('lkq.places'));
    ELSE
        r.state := 0;
        r.due := NULL;
        r.place := CASE WHEN p_front THEN nextval('lkq.fronts')
            ELSE coalesce(p_place, nextval('lkq.places')) END;
    END IF;
    RETURN r;
END $$;

-- Bring an item back whose lease has ended before it was done. A buffered value replaces that of the
-- item, and takes over its attempts and its history.
CREATE FUNCTION lkq.return_1(r lkq.live_1, p_due float8, p_front boolean, p_moment float8)
RETURNS lkq.live_1 LANGUAGE plpgsql AS $$
DECLARE
    not_before float8 := r.not_before;
BEGIN
    r.token := NULL;
    r.due := NULL;
    r.not_before := NULL;
    IF r.next_id IS NOT NULL THEN
        r.replaced := true;
        r.priority := r.next_priority;
        not_before := r.next_not_before;
        p_front := false;
    END IF;
    IF p_due IS NULL OR not_before > p_due THEN
        p_due := not_before;
    END IF;
    RETURN lkq.place_1(r, p_due, p_moment, p_front);
END $$;

-- The item is over: the value that was buffered beside it begins anew, at the back.
CREATE FUNCTION lkq.follow_1(r lkq.live_1, p_moment float8)
RETURNS lkq.live_1 LANGUAGE plpgsql AS $$
BEGIN
    r.attempt := 0;
    r.history := NULL;
    RETURN lkq.return_1(r, NULL, false, p_moment);
END $$;

-- Write what was decided about a live row.
CREATE FUNCTION lkq.write_1(p_queue text, p_key text, r lkq.live_1) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF r.replaced THEN
        UPDATE lkq.items SET
            id = next_id, put_at = next_put_at, deadline = next_deadline, kind = next_kind,
            value = next_value,
            --> include columns/no_next
        WHERE queue = p_queue AND key = p_key;
    END IF;
    UPDATE lkq.items SET
        state = r.state, priority = r.priority, place = r.place, turn = r.turn,
        attempt = r.attempt, due = r.due, not_before = r.not_before, token = r.token,
        history = r.history
    WHERE queue = p_queue AND key = p_key;
END $$;

-- Read and lock a live row; all of it is null if the key is not live.
CREATE FUNCTION lkq.live_1(p_queue text, p_key text) RETURNS lkq.live_1
LANGUAGE plpgsql AS $$
DECLARE
    r lkq.live_1;
BEGIN
    SELECT
        --> include columns/live
    INTO r FROM lkq.items i WHERE i.queue = p_queue AND i.key = p_key FOR UPDATE;
    RETURN r;
END $$;
