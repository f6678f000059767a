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

-- A live row, without its value. `next_id` is the id of the buffered value that replaces its value when it
-- is written.
CREATE TYPE lkq.live_1 AS (
    id bigint, state int, priority bigint, place bigint, turn bigint, attempt int,
    due float8, not_before float8, token text, history jsonb,
    behind bigint, line_from bigint, next_id bigint
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
    SELECT (0, 0, 0, 0, 0, 0, 0, 0, 0, p_queue)::lkq.tallies
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

-- The buffered value behind the leased head of a key that has a line; no id if there is none.
CREATE FUNCTION lkq.buffered_1(
    p_queue text, p_key text, r lkq.live_1,
    OUT id bigint, OUT priority bigint, OUT not_before float8
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT f.id, f.priority, f.not_before INTO id, priority, not_before FROM (
        SELECT p_queue AS queue
    ) t, (
        SELECT p_key AS key
    ) u, (
        SELECT coalesce(r.line_from, r.id) AS line_from
    ) h CROSS JOIN LATERAL (
        --> include first_in_line
    ) f WHERE f.replaces;
END $$;

-- Bring an item back whose lease has ended before it was done. A buffered value replaces that of the
-- item, and takes over its attempts and its history.
CREATE FUNCTION lkq.return_1(
    p_queue text, p_key text, r lkq.live_1, p_due float8, p_front boolean, p_moment float8
) RETURNS lkq.live_1 LANGUAGE plpgsql AS $$
DECLARE
    not_before float8 := r.not_before;
    buffered record;
BEGIN
    r.token := NULL;
    r.due := NULL;
    r.not_before := NULL;
    IF r.behind > 0 THEN
        buffered := lkq.buffered_1(p_queue, p_key, r);
        IF buffered.id IS NOT NULL THEN
            r.next_id := buffered.id;
            r.priority := buffered.priority;
            not_before := buffered.not_before;
            p_front := false;
        END IF;
    END IF;
    IF p_due IS NULL OR not_before > p_due THEN
        p_due := not_before;
    END IF;
    RETURN lkq.place_1(r, p_due, p_moment, p_front);
END $$;

-- The heads of these keys are over, and each has a line: the first of that begins anew, at the back of its
-- own priority or for its own time, in the order of the keys here. The rows of the heads are locked.
CREATE FUNCTION lkq.promote_1(t lkq.tallies, p_keys text[], p_moment float8)
RETURNS lkq.tallies LANGUAGE plpgsql AS $$
DECLARE
    many int;
    scheduled_ int;
BEGIN
    WITH first AS MATERIALIZED (
        SELECT u.n, f.at, h.head_at FROM unnest(p_keys) WITH ORDINALITY u (key, n)
        CROSS JOIN LATERAL (
            SELECT i.ctid AS head_at, coalesce(i.line_from, i.id) AS line_from FROM lkq.items i
            WHERE i.queue = t.queue AND i.key = u.key OFFSET 0
        ) h
        CROSS JOIN LATERAL (
            --> include first_in_line
        ) f
    ), gone AS (
        DELETE FROM lkq.line l USING first f WHERE l.ctid = f.at RETURNING f.n, f.head_at, l.*
    ), new AS MATERIALIZED (
        SELECT g.*, nextval('lkq.places') AS place, coalesce(g.not_before > p_moment, false) AS later
        FROM (SELECT * FROM gone ORDER BY n) g
    ), head AS (
        UPDATE lkq.items i SET id = n.id, priority = n.priority, put_at = n.put_at,
            deadline = n.deadline, kind = n.kind, value = n.value, state = n.later::int,
            place = CASE WHEN n.later THEN i.place ELSE n.place END,
            turn = CASE WHEN n.later THEN n.place ELSE i.turn END,
            due = CASE WHEN n.later THEN n.not_before END, not_before = NULL, attempt = 0,
            history = NULL, token = NULL, behind = i.behind - 1, line_from = NULL
        FROM new n WHERE i.ctid = n.head_at
        RETURNING i.state
    )
    SELECT count(*), coalesce(sum(h.state), 0) INTO many, scheduled_ FROM head h;
    IF many <> cardinality(p_keys) THEN
        RAISE EXCEPTION 'a line of the keys % has lost its values', p_keys
            USING ERRCODE = 'data_corrupted';
    END IF;
    t.in_line := t.in_line - many;
    t.available := t.available + many - scheduled_;
    t.scheduled := t.scheduled + scheduled_;
    RETURN t;
END $$;

-- Write what was decided about a live row.
CREATE FUNCTION lkq.write_1(p_queue text, p_key text, r lkq.live_1) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF r.next_id IS NULL THEN
        UPDATE lkq.items SET
            --> include columns/decided
        WHERE queue = p_queue AND key = p_key;
    ELSE
        WITH gone AS (
            DELETE FROM lkq.line WHERE queue = p_queue AND key = p_key AND id = r.next_id
            RETURNING id, put_at, deadline, kind, value
        )
        UPDATE lkq.items i SET
            id = g.id, put_at = g.put_at, deadline = g.deadline, kind = g.kind, value = g.value,
            behind = i.behind - 1, line_from = NULL,
            --> include columns/decided
        FROM gone g WHERE i.queue = p_queue AND i.key = p_key;
    END IF;
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
