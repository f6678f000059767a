-- What the store does, in the server: one call, one round trip and one transaction for a batch.
-- "lkq" stands for the schema that the store was given. It mirrors `leasedkeyq.model.state` and
-- `StoreModel`; tests compare their answers. A function that others call is never changed once it
-- was released: a new version gets a new name, so that old and new workers work side by side.
--
-- What is not a statement but an expression, such as `void_function() IS NULL`, costs a fraction.
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

CREATE FUNCTION lkq.lock_1(p_sort text, p_queue text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ('x' || substr(md5('lkq' || '/' || p_sort || '/' || p_queue), 1, 16))::bit(64)::bigint
$$;

CREATE FUNCTION lkq.now_1(p_now float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::float8)
$$;

-- Add to the tallies of a queue what has changed: a number for each of their columns, in their order.
CREATE FUNCTION lkq.tally_1(p_queue text, t bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_queue IS NOT NULL AND t <> '{0,0,0,0,0,0,0,0}' THEN
        INSERT INTO lkq.tallies (queue, available, buffered, scheduled, in_flight, buried, done,
            done_failed, done_cancelled)
        VALUES (p_queue, t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]);
    END IF;
END $$;

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

-- Give an item its place, or schedule it.
CREATE FUNCTION lkq.place_1(r lkq.live_1, p_due float8, p_moment float8, p_front boolean)
RETURNS lkq.live_1 LANGUAGE plpgsql AS $$
BEGIN
    IF p_due > p_moment THEN
        r.state := 1;
        r.due := p_due;
        r.turn := nextval('lkq.turns');
    ELSE
        r.state := 0;
        r.due := NULL;
        r.place := CASE WHEN p_front THEN nextval('lkq.fronts') ELSE nextval('lkq.places') END;
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

CREATE FUNCTION lkq.write_1(p_queue text, p_key text, r lkq.live_1) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF r.replaced THEN
        UPDATE lkq.items SET
            state = r.state, priority = r.priority, place = r.place, turn = r.turn,
            attempt = r.attempt, due = r.due, not_before = r.not_before, token = r.token,
            history = r.history, id = next_id, put_at = next_put_at, deadline = next_deadline,
            kind = next_kind, value = next_value, next_id = NULL, next_priority = NULL,
            next_not_before = NULL, next_put_at = NULL, next_deadline = NULL, next_kind = NULL,
            next_value = NULL
        WHERE queue = p_queue AND key = p_key;
    ELSE
        UPDATE lkq.items SET
            state = r.state, priority = r.priority, place = r.place, turn = r.turn,
            attempt = r.attempt, due = r.due, not_before = r.not_before, token = r.token,
            history = r.history
        WHERE queue = p_queue AND key = p_key;
    END IF;
END $$;

CREATE FUNCTION lkq.live_1(p_queue text, p_key text) RETURNS lkq.live_1
LANGUAGE plpgsql AS $$
DECLARE
    r lkq.live_1;
BEGIN
    SELECT id, state, priority, place, turn, attempt, due, not_before, token, history,
        next_id, next_priority, next_not_before, false
    INTO r FROM lkq.items WHERE queue = p_queue AND key = p_key FOR UPDATE;
    RETURN r;
END $$;

-- Where to begin to look in a queue. A clock that was set back makes what is known of it void.
CREATE FUNCTION lkq.floor_1(p_queue text, p_now float8) RETURNS lkq.floors
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found lkq.floors;
BEGIN
    SELECT * INTO found FROM lkq.floors WHERE queue = p_queue;
    IF found.place IS NULL THEN
        found.place := 0;
        found.counted := false;
    END IF;
    IF found.due IS NULL OR found.due > p_now THEN
        found.due := '-infinity';
    END IF;
    RETURN found;
END $$;

-- Deal with what has come due in a queue, each as of its own moment. Rows that somebody else is
-- changing right now are left to the order in which the two commit.
CREATE FUNCTION lkq.advance_1(p_queue text, p_now float8, p_history int, p_floor float8)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    k text;
    r lkq.live_1;
    moment float8;
    t bigint[] := '{0,0,0,0,0,0,0,0}';
    again boolean := true;
    moved boolean := false;
    many int;
BEGIN
    WHILE again LOOP
        again := false;
        many := 0;
        FOR k, r.id, r.state, r.priority, r.place, r.turn, r.attempt, r.due, r.not_before, r.token,
            r.history, r.next_id, r.next_priority, r.next_not_before, r.replaced IN
            SELECT i.key, i.id, i.state, i.priority, i.place, i.turn, i.attempt, i.due,
                i.not_before, i.token, i.history, i.next_id, i.next_priority, i.next_not_before,
                false
            FROM lkq.items i WHERE i.queue = p_queue AND i.due >= p_floor AND i.due <= p_now
            ORDER BY i.due, i.turn LIMIT 200 FOR UPDATE SKIP LOCKED
        LOOP
            many := many + 1;
            moment := r.due;
            IF r.state = 1 THEN
                t[3] := t[3] - 1;
                r := lkq.place_1(r, NULL, moment, false);
            ELSE
                t[4] := t[4] - 1;
                t[2] := t[2] - (r.next_id IS NOT NULL)::int;
                r.history := lkq.remember_1(r.history, r.attempt, moment, 'expired', '', p_history);
                r := lkq.return_1(r, NULL, true, moment);
            END IF;
            IF r.state = 0 THEN
                t[1] := t[1] + 1;
            ELSE
                t[3] := t[3] + 1;
            END IF;
            PERFORM lkq.write_1(p_queue, k, r);
            IF r.due <= p_now THEN
                -- It is scheduled for a moment that has come, too: its turn is among the rest.
                again := true;
                EXIT;
            END IF;
        END LOOP;
        moved := moved OR many > 0;
        again := again OR many = 200;
    END LOOP;
    PERFORM lkq.tally_1(p_queue, t);
    RETURN moved;
END $$;

-- Put one item that nothing refuses. Returns its id, and what that adds to the tally. A key that was
-- leased since somebody looked makes the call begin anew.
CREATE FUNCTION lkq.put_one_1(
    p_now float8, p_queue text, p_key text, p_value bytea, p_policy text, p_priority bigint,
    p_due float8, p_kind text, p_deadline float8 DEFAULT NULL, p_id bigint DEFAULT NULL,
    OUT number bigint, OUT available int, OUT buffered int, OUT scheduled int
) LANGUAGE plpgsql AS $$
DECLARE
    r lkq.live_1;
    until float8 := CASE WHEN p_due > p_now THEN p_due END;
    moved boolean := false;
BEGIN
    available := 0;
    buffered := 0;
    scheduled := 0;
    FOR tries IN 1..1000 LOOP
        r := lkq.live_1(p_queue, p_key);
        EXIT WHEN r.id IS NOT NULL;
        IF until IS NULL THEN
            INSERT INTO lkq.items
            (id, queue, key, state, priority, place, put_at, deadline, kind, value)
            VALUES (coalesce(p_id, nextval('lkq.ids')), p_queue, p_key, 0, coalesce(p_priority, 0),
                nextval('lkq.places'), p_now, p_deadline, p_kind, p_value)
            ON CONFLICT (queue, key) DO NOTHING RETURNING id INTO number;
            available := 1;
        ELSE
            INSERT INTO lkq.items
            (id, queue, key, state, priority, place, put_at, deadline, due, turn, kind, value)
            VALUES (coalesce(p_id, nextval('lkq.ids')), p_queue, p_key, 1, coalesce(p_priority, 0), 0, p_now,
                p_deadline, until, nextval('lkq.turns'), p_kind, p_value)
            ON CONFLICT (queue, key) DO NOTHING RETURNING id INTO number;
            scheduled := 1;
        END IF;
        IF number IS NOT NULL THEN
            RETURN;
        END IF;
        available := 0;
        scheduled := 0;
        IF tries = 1000 THEN
            -- In a transaction that does not see what others have committed since it began.
            RAISE EXCEPTION 'key % was put by another transaction', p_key
                USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    number := r.id;
    IF r.state <> 2 THEN
        IF p_priority <> r.priority THEN
            r.priority := p_priority;
            moved := true;
            IF r.state = 0 THEN
                r.place := nextval('lkq.places');
            END IF;
        END IF;
        IF p_due IS NOT NULL AND (r.state = 1 OR until IS NOT NULL) THEN
            IF r.state = 0 THEN
                available := available - 1;
            ELSE
                scheduled := scheduled - 1;
            END IF;
            r := lkq.place_1(r, p_due, p_now, false);
            IF r.state = 0 THEN
                available := available + 1;
            ELSE
                scheduled := scheduled + 1;
            END IF;
            moved := true;
        END IF;
        IF moved THEN
            UPDATE lkq.items SET state = r.state, priority = r.priority, place = r.place,
                turn = r.turn, due = r.due, deadline = p_deadline, kind = p_kind, value = p_value
            WHERE queue = p_queue AND key = p_key;
        ELSE
            UPDATE lkq.items SET deadline = p_deadline, kind = p_kind, value = p_value
            WHERE queue = p_queue AND key = p_key;
        END IF;
    ELSIF p_policy = 'reject' THEN
        RAISE EXCEPTION 'key % was leased by another transaction', p_key
            USING ERRCODE = 'serialization_failure';
    ELSIF r.next_id IS NULL AND p_policy <> 'buffer' THEN
        IF p_priority <> r.priority THEN
            r.priority := p_priority;
            r.place := nextval('lkq.places');
        END IF;
        IF p_due IS NOT NULL THEN
            r.not_before := until;
        END IF;
        UPDATE lkq.items SET deadline = p_deadline, kind = p_kind, value = p_value,
            priority = r.priority, place = r.place, not_before = r.not_before
        WHERE queue = p_queue AND key = p_key;
    ELSE
        IF r.next_id IS NULL THEN
            buffered := 1;
            r.next_priority := r.priority;
            r.next_not_before := r.not_before;
        END IF;
        number := coalesce(r.next_id, p_id, nextval('lkq.ids'));
        IF p_priority <> r.next_priority THEN
            r.next_priority := p_priority;
            r.place := nextval('lkq.places');
        END IF;
        IF p_due IS NOT NULL THEN
            r.next_not_before := until;
        END IF;
        UPDATE lkq.items SET next_id = number, next_priority = r.next_priority, place = r.place,
            next_not_before = r.next_not_before, next_kind = p_kind, next_value = p_value,
            next_put_at = coalesce(next_put_at, p_now), next_deadline = p_deadline
        WHERE queue = p_queue AND key = p_key;
    END IF;
END $$;

-- How many items wait in a queue: what `max_items` limits.
CREATE FUNCTION lkq.waiting_1(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(available + buffered + scheduled), 0)
        FROM lkq.tallies WHERE queue = p_queue
    );
END $$;

-- Why a put must not happen: keys in flight, or a full queue; null if it may.
CREATE FUNCTION lkq.refusal_1(
    p_queue text, p_keys text[], p_policy text, p_most bigint, t bigint[],
    p_hold boolean DEFAULT true
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    need int;
    leased text[];
BEGIN
    IF p_policy <> 'reject' AND p_most = 0 THEN
        RETURN NULL;
    END IF;
    IF p_hold THEN
        -- What is true of them now is so until this transaction ends.
        PERFORM FROM (SELECT DISTINCT k.key FROM unnest(p_keys) k (key) ORDER BY k.key) u
        CROSS JOIN LATERAL (
            SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key = u.key FOR UPDATE
        ) held;
    END IF;
    SELECT
        count(*) FILTER (WHERE i.key IS NULL
            OR i.state = 2 AND i.next_id IS NULL AND p_policy = 'buffer'),
        array_agg(u.key ORDER BY u.n) FILTER (WHERE i.state = 2)
    INTO need, leased
    FROM (
        SELECT k.key, min(k.n) AS n FROM unnest(p_keys) WITH ORDINALITY k (key, n) GROUP BY k.key
    ) u
    LEFT JOIN LATERAL (
        SELECT i.key, i.state, i.next_id FROM lkq.items i
        WHERE i.queue = p_queue AND i.key = u.key OFFSET 0
    ) i ON true;
    IF p_policy = 'reject' AND leased IS NOT NULL THEN
        RETURN jsonb_build_object('in_flight', leased);
    END IF;
    IF p_most > 0 AND need > 0
        AND lkq.waiting_1(p_queue) + t[1] + t[2] + t[3] + need > p_most
    THEN
        RETURN jsonb_build_object('full', p_most);
    END IF;
    RETURN NULL;
END $$;

-- Where to begin to look in the inbox of a queue. The numbers of transactions begin anew where a dump
-- was restored, which makes what is known void.
CREATE FUNCTION lkq.inbox_floor_1(p_gate bigint) RETURNS xid8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT f.xact FROM lkq.inbox_floors f
        WHERE f.gate = p_gate AND f.xact <= pg_snapshot_xmax(pg_current_snapshot())
    ), '0');
END $$;

-- Whether something has come to queues, which are named by their locks, that is not among their items.
CREATE FUNCTION lkq.has_letters_1(p_gates bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gate_ bigint;
BEGIN
    FOREACH gate_ IN ARRAY p_gates LOOP
        IF EXISTS (
            SELECT FROM lkq.inbox b WHERE b.gate = gate_ AND b.xact >= lkq.inbox_floor_1(gate_)
        ) THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Move to the items of queues what was put in the transactions of callers, in its order: one at a
-- time does it, so that a value never overtakes an older one of its key. The queues are named by
-- their locks, which the caller holds. Returns those in which something was put.
CREATE FUNCTION lkq.receive_1(p_gates bigint[], p_now float8) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    gate_ bigint;
    held bigint[] := '{}';
    letters lkq.inbox[];
    letter lkq.inbox;
    i int;
    fresh int[];
    one record;
    t bigint[];
    received text[] := '{}';
    oldest xid8;
BEGIN
    -- First all these locks, then items: who holds an item must not wait for one who may want it.
    FOREACH gate_ IN ARRAY p_gates LOOP
        IF lkq.has_letters_1(ARRAY[gate_]) THEN
            PERFORM pg_advisory_xact_lock(lkq.lock_1('inbox', gate_::text));
            held := held || gate_;
        END IF;
    END LOOP;
    FOREACH gate_ IN ARRAY held LOOP
        -- All transactions before this one have ended, and the next statement sees what they did.
        SELECT pg_snapshot_xmin(pg_current_snapshot()) INTO oldest;
        WITH taken AS (
            DELETE FROM lkq.inbox b WHERE b.gate = gate_ AND b.xact >= lkq.inbox_floor_1(gate_)
            RETURNING b AS letter
        )
        SELECT array_agg(n.letter ORDER BY (n.letter).number) INTO letters FROM taken n;
        CONTINUE WHEN letters IS NULL; -- somebody else was faster
        letter := letters[cardinality(letters)];
        -- Not each time: the old versions of this row are in the way, too.
        INSERT INTO lkq.inbox_floors AS f (gate, xact, number)
        SELECT gate_, oldest, letter.number WHERE letter.number >= 1000
        ON CONFLICT (gate) DO UPDATE SET xact = excluded.xact, number = excluded.number
        WHERE excluded.number >= f.number + 1000 OR f.xact > excluded.xact;
        p_now := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
        -- Most keys are new. They are put in one order, whoever does it, with places in theirs.
        WITH new AS MATERIALIZED (
            SELECT l.n, l.id, l.queue, l.key, l.priority, l.kind, l.value,
                nextval('lkq.places') AS place
            FROM (
                SELECT m.*, row_number() OVER (PARTITION BY m.key ORDER BY m.n) AS nth
                FROM unnest(letters) WITH ORDINALITY
                    m (gate, number, id, xact, priority, due, queue, key, kind, policy, value, n)
                ORDER BY m.n
            ) l WHERE l.nth = 1 AND (l.due IS NULL OR l.due <= p_now)
        ), put AS (
            INSERT INTO lkq.items (id, queue, key, state, priority, place, put_at, kind, value)
            SELECT id, queue, key, 0, coalesce(priority, 0), place, p_now, kind, value
            FROM new ORDER BY key
            ON CONFLICT (queue, key) DO NOTHING RETURNING id
        )
        SELECT array_agg(pairs.n) INTO fresh FROM (
            SELECT max(found.n) AS n FROM (
                SELECT new.id, new.n FROM new UNION ALL SELECT put.id, NULL FROM put
            ) found GROUP BY found.id HAVING count(*) = 2
        ) pairs;
        t := ARRAY[coalesce(cardinality(fresh), 0), 0, 0, 0, 0, 0, 0, 0];
        IF t[1] < cardinality(letters) THEN
            PERFORM FROM (SELECT DISTINCT l.queue, l.key FROM unnest(letters) l ORDER BY 1, 2) u
            CROSS JOIN LATERAL (
                SELECT FROM lkq.items i WHERE i.queue = u.queue AND i.key = u.key FOR UPDATE
            ) held;
            FOR i IN
                SELECT n FROM generate_series(1, cardinality(letters)) n
                EXCEPT SELECT unnest(fresh) ORDER BY 1
            LOOP
                letter := letters[i];
                one := lkq.put_one_1(p_now, letter.queue, letter.key, letter.value, letter.policy,
                    letter.priority, letter.due, letter.kind, NULL, letter.id);
                t[1] := t[1] + one.available;
                t[2] := t[2] + one.buffered;
                t[3] := t[3] + one.scheduled;
            END LOOP;
        END IF;
        letter := letters[1];
        PERFORM lkq.tally_1(letter.queue, t);
        received := received || letter.queue::text;
    END LOOP;
    RETURN received;
END $$;

-- Keep the results of an item that goes. Returns how many were kept.
CREATE FUNCTION lkq.keep_1(
    p_queue text, p_key text, p_due float8, p_outcome int, p_value bytea, p_item boolean,
    p_next boolean
) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF p_item THEN
        INSERT INTO lkq.done
        (id, queue, key, priority, attempt, put_at, due, outcome, history, kind, value)
        SELECT id, queue, key, priority, attempt, put_at, p_due, p_outcome, history, kind, p_value
        FROM lkq.items WHERE queue = p_queue AND key = p_key;
    END IF;
    IF p_next THEN
        INSERT INTO lkq.done
        (id, queue, key, priority, attempt, put_at, due, outcome, kind, value)
        SELECT next_id, queue, key, next_priority, 0, next_put_at, p_due, p_outcome, next_kind,
            p_value
        FROM lkq.items WHERE queue = p_queue AND key = p_key;
    END IF;
    RETURN p_item::int + p_next::int;
END $$;

-- A tally when there are so many results of an outcome more, or less.
CREATE FUNCTION lkq.step_done_1(t bigint[], p_outcome int, p_step bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    t[6] := t[6] + p_step;
    IF p_outcome > 0 THEN
        t[6 + p_outcome] := t[6 + p_outcome] + p_step;
    END IF;
    RETURN t;
END $$;

-- Forget up to `p_most` results that are old, the oldest first. Returns how many.
CREATE FUNCTION lkq.forget_1(p_queue text, p_now float8, p_most int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    many bigint;
    failed bigint;
    cancelled bigint;
BEGIN
    WITH gone AS (
        DELETE FROM lkq.done WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM lkq.done WHERE queue || '' = p_queue AND due <= p_now
            ORDER BY queue || '', due LIMIT p_most FOR UPDATE SKIP LOCKED
        )) RETURNING outcome
    )
    SELECT count(*), count(*) FILTER (WHERE outcome = 1), count(*) FILTER (WHERE outcome = 2)
    INTO many, failed, cancelled FROM gone;
    PERFORM lkq.tally_1(p_queue, ARRAY[0, 0, 0, 0, 0, -many, -failed, -cancelled]);
    RETURN many;
END $$;

-- A tally when one item more is in a state, or one less.
CREATE FUNCTION lkq.step_1(t bigint[], p_state int, p_step int) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    column_ int := CASE p_state WHEN 0 THEN 1 WHEN 1 THEN 3 ELSE 4 END;
BEGIN
    t[column_] := t[column_] + p_step;
    RETURN t;
END $$;

-- The acks that were not as simple as most: those whose numbers are not among `p_done`. Returns which
-- of them are refused, how many leases have ended, how many of these had a value beside them, and
-- what has become of that. With `p_keeps`, the results are kept for so many seconds, with the outcome
-- `p_outcome`.
CREATE FUNCTION lkq.acks_1(
    p_queue text, p_now float8, p_keys text[], p_tokens text[], p_done int[], p_keeps float8[],
    p_outcome int, p_results bytea[], OUT refused int[], OUT ended int, OUT buffered int, OUT available int,
    OUT scheduled int
) LANGUAGE plpgsql AS $$
DECLARE
    i int;
    r lkq.live_1;
BEGIN
    refused := '{}';
    ended := 0;
    buffered := 0;
    available := 0;
    scheduled := 0;
    FOR i IN
        SELECT n FROM generate_series(1, cardinality(p_keys)) n
        EXCEPT SELECT unnest(p_done) ORDER BY 1
    LOOP
        r := lkq.live_1(p_queue, p_keys[i]);
        IF r.due <= p_now OR r.token IS DISTINCT FROM p_tokens[i] THEN
            -- If it has expired, somebody who was changing it kept it from ending.
            refused := refused || i;
            CONTINUE;
        END IF;
        ended := ended + 1;
        IF p_keeps IS NOT NULL THEN
            PERFORM lkq.keep_1(
                p_queue, p_keys[i], p_now + p_keeps[i], p_outcome, p_results[i], true, false);
        END IF;
        IF r.next_id IS NULL THEN
            -- Somebody has changed its value just now.
            DELETE FROM lkq.items WHERE queue = p_queue AND key = p_keys[i];
        ELSE
            buffered := buffered + 1;
            r := lkq.follow_1(r, p_now);
            IF r.state = 0 THEN
                available := available + 1;
            ELSE
                scheduled := scheduled + 1;
            END IF;
            PERFORM lkq.write_1(p_queue, p_keys[i], r);
        END IF;
    END LOOP;
END $$;

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

-- Whether a key has room under caps: 1, or 0, or -1 if nothing at all has room any more. p_counts
-- says of how many leased keys the patterns are.
CREATE FUNCTION lkq.room_1(p_now float8, p_queue text, p_key text, p_caps jsonb[], p_counts jsonb)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    cap jsonb;
    b lkq.buckets;
    room boolean := true;
BEGIN
    FOREACH cap IN ARRAY p_caps LOOP
        IF cap ? 'in_flight' THEN
            room := (p_counts->>(cap->>'pattern'))::bigint < (cap->>'in_flight')::bigint;
        END IF;
        IF room AND cap ? 'rate' THEN
            SELECT * INTO b FROM lkq.buckets WHERE queue = p_queue
                AND pattern = cap->>'pattern' AND each = (cap->>'each')::boolean
                AND key = CASE WHEN (cap->>'each')::boolean THEN p_key ELSE '' END;
            room := NOT FOUND OR b.full_at <= p_now
                OR b.at + (1 - b.level) / (cap->>'rate')::float8 <= p_now;
        END IF;
        IF NOT room THEN
            RETURN CASE WHEN cap->>'pattern' = '*' AND NOT (cap->>'each')::boolean THEN -1 ELSE 0 END;
        END IF;
    END LOOP;
    RETURN 1;
END $$;

-- The rows that a claim with caps may lease in a queue, in order; their tokens are taken. One such
-- claim at a time works on a queue. With p_lifts, deadlines bring items forward: see `lift_1`.
CREATE FUNCTION lkq.capped_1(
    p_now float8, p_queue text, p_room int, p_key text, p_kinds text[], p_caps jsonb,
    p_in_flight bigint, p_lifts boolean, p_deadline float8, p_shares float8[], p_ups bigint[]
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    firsts CURSOR FOR
        (SELECT key, put_at, deadline FROM lkq.items
        WHERE p_key IS NULL AND queue = p_queue AND state = 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place)
        UNION ALL
        (SELECT key, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND key = p_key AND state + 0 = 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds)));
    nearests CURSOR FOR
        SELECT key, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY deadline, id;
    chosen tid[] := '{}';
    passed text[] := '{}'; -- keys that were chosen, or that somebody else is leasing
    first_key text;
    first_at float8;
    first_due float8;
    near_key text;
    near_at float8;
    near_due float8;
    lifts boolean := p_lifts AND p_key IS NULL AND lkq.hurried_1(p_queue);
    found_at tid;
    k text;
    cap jsonb;
    caps jsonb[];
    counts jsonb := '{}';
    pattern_ text;
    prefix text;
    behind text;
    b lkq.buckets;
    level float8;
    rate float8;
    burst float8;
    room int;
    counted_ boolean := EXISTS (SELECT FROM lkq.floors WHERE queue = p_queue AND counted);
BEGIN
    -- Who asks has seen to `count_leased_1`; if that could not be, or was lost with a server, all
    -- that is leased is looked at.
    FOR cap IN SELECT c FROM jsonb_array_elements(p_caps) c WHERE c ? 'in_flight' LOOP
        pattern_ := cap->>'like';
        prefix := cap->>'prefix';
        behind := prefix || repeat(chr(1114111), 512); -- what begins with it is before that
        counts := counts || jsonb_build_object(cap->>'pattern', CASE
            WHEN pattern_ = '%' THEN
                p_in_flight + (SELECT coalesce(sum(in_flight), 0)::bigint
                    FROM lkq.tallies WHERE queue = p_queue)
            WHEN counted_ THEN
                (SELECT count(*) FROM lkq.items WHERE queue = p_queue AND state = 2 AND counted
                    AND key >= prefix AND key <= behind AND key LIKE pattern_)
            ELSE
                (SELECT count(*) FROM lkq.items WHERE queue = p_queue AND state = 2 AND turn < 0
                    AND key LIKE pattern_)
        END);
    END LOOP;
    OPEN firsts;
    IF lifts THEN
        OPEN nearests;
    END IF;
    WHILE cardinality(chosen) < p_room LOOP
        -- The first item that has room. What has none now has none later on, either.
        LOOP
            IF first_key IS NOT NULL AND first_key <> ALL (passed) THEN
                caps := ARRAY(SELECT c FROM jsonb_array_elements(p_caps) c WHERE first_key LIKE c->>'like');
                room := lkq.room_1(p_now, p_queue, first_key, caps, counts);
                EXIT WHEN room <> 0;
            END IF;
            FETCH firsts INTO first_key, first_at, first_due;
            EXIT WHEN NOT FOUND;
        END LOOP;
        EXIT WHEN first_key IS NULL OR room < 0;
        k := first_key;
        IF lifts THEN
            LOOP
                IF near_key IS NOT NULL AND near_key <> ALL (passed) THEN
                    caps := ARRAY(SELECT c FROM jsonb_array_elements(p_caps) c WHERE near_key LIKE c->>'like');
                    EXIT WHEN lkq.room_1(p_now, p_queue, near_key, caps, counts) > 0;
                END IF;
                FETCH nearests INTO near_key, near_at, near_due;
                EXIT WHEN NOT FOUND;
            END LOOP;
            IF near_key IS NOT NULL
                AND lkq.lift_1(p_now, near_at, near_due, p_deadline, p_shares, p_ups)
                    > lkq.lift_1(p_now, first_at, first_due, p_deadline, p_shares, p_ups)
            THEN
                k := near_key;
            END IF;
            passed := passed || k;
        ELSE
            first_key := NULL;
        END IF;
        SELECT ctid INTO found_at FROM lkq.items
        WHERE queue = p_queue AND key = k AND state + 0 = 0 FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        chosen := chosen || found_at;
        caps := ARRAY(SELECT c FROM jsonb_array_elements(p_caps) c WHERE k LIKE c->>'like');
        FOR cap IN SELECT DISTINCT ON (c->>'pattern') c FROM unnest(caps) c WHERE c ? 'in_flight' LOOP
            counts := counts || jsonb_build_object(
                cap->>'pattern', (counts->>(cap->>'pattern'))::bigint + 1
            );
        END LOOP;
        FOREACH cap IN ARRAY caps LOOP
            CONTINUE WHEN NOT cap ? 'rate';
            rate := (cap->>'rate')::float8;
            burst := (cap->>'burst')::float8;
            level := burst;
            SELECT * INTO b FROM lkq.buckets WHERE queue = p_queue
                AND pattern = cap->>'pattern' AND each = (cap->>'each')::boolean
                AND key = CASE WHEN (cap->>'each')::boolean THEN k ELSE '' END;
            IF FOUND AND b.full_at > p_now THEN
                level := least(burst, b.level + (p_now - b.at) * rate);
            END IF;
            level := greatest(level - 1, 0);
            INSERT INTO lkq.buckets (queue, pattern, each, key, level, at, next_at, full_at)
            VALUES (p_queue, cap->>'pattern', (cap->>'each')::boolean,
                CASE WHEN (cap->>'each')::boolean THEN k ELSE '' END,
                level, p_now, p_now + (1 - level) / rate, p_now + (burst - level) / rate)
            ON CONFLICT (queue, pattern, each, key) DO UPDATE SET level = excluded.level,
                at = excluded.at, next_at = excluded.next_at, full_at = excluded.full_at;
        END LOOP;
    END LOOP;
    CLOSE firsts;
    IF lifts THEN
        CLOSE nearests;
    END IF;
    RETURN chosen;
END $$;

-- The rows that a claim leases, in order, in a queue of which it is known where to begin to look.
-- They are locked, and others do not wait for them.
CREATE FUNCTION lkq.ready_1(p_queue text, p_many int, p_floor bigint, p_kinds text[])
RETURNS SETOF tid
LANGUAGE plpgsql AS $$
DECLARE
    many int;
BEGIN
    RETURN QUERY
    SELECT ctid FROM lkq.items WHERE queue = p_queue AND state = 0 AND priority > 0
        AND (p_kinds IS NULL OR kind = ANY (p_kinds))
    ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS many = ROW_COUNT;
    p_many := p_many - many;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS many = ROW_COUNT;
        p_many := p_many - many;
    END IF;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND priority = 0 AND place >= p_floor
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY place LIMIT p_many FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS many = ROW_COUNT;
        p_many := p_many - many;
    END IF;
    IF p_many > 0 THEN
        RETURN QUERY
        SELECT ctid FROM lkq.items WHERE queue = p_queue AND state = 0 AND priority < 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED;
    END IF;
END $$;

-- An item that a claim by urgency may lease: the number of its queue, and its own number there.
CREATE TYPE lkq.candidate_1 AS (
    number int, n int, key text, id bigint, put_at float8, deadline float8
);

-- The next items of a queue, of some kinds or of a key, in order. They are not locked.
CREATE FUNCTION lkq.next_1(p_number int, p_queue text, p_many int, p_kinds text[], p_key text)
RETURNS lkq.candidate_1[] LANGUAGE plpgsql STABLE AS $$
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
            (SELECT key, id, put_at, deadline FROM lkq.items
            WHERE queue = p_queue AND state = 0 AND priority > 0
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY priority DESC, place LIMIT p_many)
            UNION ALL
            (SELECT key, id, put_at, deadline FROM lkq.items
            WHERE queue = p_queue AND state = 0 AND priority = 0 AND place < 0
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY place LIMIT p_many)
            UNION ALL
            (SELECT key, id, put_at, deadline FROM lkq.items
            WHERE queue = p_queue AND state = 0 AND priority = 0
                AND place >= (lkq.floor_1(p_queue, 'infinity')).place
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY place LIMIT p_many)
            UNION ALL
            (SELECT key, id, put_at, deadline FROM lkq.items
            WHERE queue = p_queue AND state = 0 AND priority < 0
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY priority DESC, place LIMIT p_many)
        ) i LIMIT p_many
    );
END $$;

-- The same, where deadlines bring items forward. Two lines, by place and by deadline, are merged: of
-- their heads, the one that is up more is next, and of two that are alike the first by place. So the
-- turn of an item has come when that of those before it in its line has; it is in both lines, and the
-- earlier turn counts.
CREATE FUNCTION lkq.line_1(
    p_now float8, p_number int, p_queue text, p_many int, p_kinds text[], p_key text,
    p_deadline float8, p_shares float8[], p_ups bigint[]
) RETURNS lkq.candidate_1[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_key IS NOT NULL OR NOT lkq.hurried_1(p_queue) THEN
        RETURN lkq.next_1(p_number, p_queue, p_many, p_kinds, p_key);
    END IF;
    RETURN ARRAY(
        SELECT (p_number, row_number() OVER (ORDER BY turn, line, n),
            key, id, put_at, deadline)::lkq.candidate_1
        FROM (
            SELECT DISTINCT ON (id) * FROM (
                SELECT line, n, key, id, put_at, deadline, max(-up) OVER (
                    PARTITION BY line ORDER BY n
                ) AS turn
                FROM (
                    SELECT *, lkq.lift_1(p_now, put_at, deadline, p_deadline, p_shares, p_ups) AS up
                    FROM (
                        SELECT 0 AS line, n, key, id, put_at, deadline
                        FROM unnest(lkq.next_1(p_number, p_queue, p_many, p_kinds, NULL))
                        UNION ALL
                        SELECT 1, row_number() OVER (ORDER BY deadline, id), key, id, put_at, deadline
                        FROM (
                            SELECT key, id, put_at, deadline FROM lkq.items
                            WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
                                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
                            ORDER BY deadline, id LIMIT p_many
                        ) nearest
                    ) both_lines
                ) lifted
            ) turns ORDER BY id, turn, line
        ) once
        ORDER BY turn, line, n LIMIT p_many
    );
END $$;

-- What a claim by urgency leases: the numbers of the queues, counted from 1, and the rows, in order.
-- Only these are locked, one after the other. What somebody else is just leasing is passed over.
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
                        p_run->>'key', kinds, queues[q]->'caps', in_flight, boosts[q], deadlines[q],
                        ARRAY(SELECT s.share FROM unnest(steps, shares) s (number, share)
                            WHERE s.number = q),
                        ARRAY(SELECT s.up FROM unnest(steps, ups) s (number, up)
                            WHERE s.number = q));
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
                candidates := candidates || lkq.line_1(
                    p_now, q, queues[q]->>'queue', manys[q], kinds, p_run->>'key', deadlines[q],
                    ARRAY(SELECT s.share FROM unnest(steps, shares) s (number, share)
                        WHERE s.number = q),
                    ARRAY(SELECT s.up FROM unnest(steps, ups) s (number, up) WHERE s.number = q)
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
                queues[q]->'caps', in_flight, boosts[q], deadlines[q],
                ARRAY(SELECT s.share FROM unnest(steps, shares) s (number, share)
                    WHERE s.number = q),
                ARRAY(SELECT s.up FROM unnest(steps, ups) s (number, up) WHERE s.number = q));
        END IF;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(numbers, tids);
END $$;

-- Find out where to begin to look in queues in which claims have become slow. Nobody else changes
-- them meanwhile; if others are at it for long, it is left for the next time. Returns how many
-- seconds it took to get there.
CREATE FUNCTION lkq.raise_1(p_queues text[], p_now float8, p_history int) RETURNS float8
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    floor_ lkq.floors;
    q text;
    first bigint;
    began timestamptz;
    took float8 := 0;
BEGIN
    FOREACH q IN ARRAY p_queues LOOP
        PERFORM pg_advisory_xact_lock(lkq.lock_1('queue', q));
        began := clock_timestamp();
        floor_ := lkq.floor_1(q, now_);
        IF lkq.advance_1(q, now_, p_history, floor_.due) THEN
            PERFORM lkq.tell_1(ARRAY[q]);
        END IF;
        SELECT place INTO first FROM lkq.items
        WHERE queue = q AND state = 0 AND priority = 0 AND place >= floor_.place
        ORDER BY place LIMIT 1;
        IF first IS NULL THEN
            -- Whatever is put from now on gets a higher one.
            first := nextval('lkq.places');
        END IF;
        INSERT INTO lkq.floors (queue, place, due) VALUES (q, first, now_)
        ON CONFLICT (queue) DO UPDATE SET place = excluded.place, due = excluded.due;
        took := took + extract(epoch FROM clock_timestamp() - began);
    END LOOP;
    RETURN took;
END $$;

-- From now on, know of the leased keys of a queue how many are like a pattern: what caps ask for. It
-- takes as long as there are leases in a queue that nobody has asked so before. Nobody else changes
-- it meanwhile; if others are at it for long, it is left for the next time.
CREATE FUNCTION lkq.count_leased_1(p_queue text) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET lock_timeout = '100ms'
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM lkq.floors WHERE queue = p_queue AND counted) THEN
        PERFORM pg_advisory_xact_lock(lkq.lock_1('queue', p_queue));
        INSERT INTO lkq.floors (queue, place, due, counted) VALUES (p_queue, 0, '-infinity', true)
        ON CONFLICT (queue) DO UPDATE SET counted = true;
        -- A lease has a turn below 0: the scheduled ones beside it in the index are passed over.
        UPDATE lkq.items SET counted = true
        WHERE queue = p_queue AND state = 2 AND turn < 0 AND NOT counted;
    END IF;
END $$;

-- Apply a batch, run by run. A run is one request of any sort, or several that are alike:
-- "puts" of items that nothing refuses, "acks" that keep no result, "kept" ones that do, or the same
-- claim many times.
-- Returns what was claimed, and in a last row all other answers.
--
--   p_call      names this call, for a client that has lost the answer
--   p_secret    what nobody can guess, for the tokens
--   p_shared    the locks that all take who change the queues; an edit takes them alone
--   p_alone     the locks of what one at a time does in a queue: bounded puts, claims with caps
--   p_queues    with p_names, the live keys that the batch names, if their order may matter to others
--   p_keys ...  the items of the runs "puts" and "acks"
CREATE FUNCTION lkq.apply_1(
    p_call text, p_now float8, p_buried int, p_history int, p_secret text, p_shared bigint[],
    p_alone bigint[], p_queues text[], p_names text[], p_runs jsonb, p_keys text[],
    p_tokens text[], p_values bytea[], p_priorities bigint[], p_kinds text[], p_deadlines float8[]
) RETURNS TABLE (
    n int, queue text, key text, value bytea, id bigint, token text, fence bigint, attempt int,
    priority bigint, expires_at float8, put_at float8, kind text, deadline float8, at text,
    answers text
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now_ float8;
    run jsonb;
    op text;
    q text;
    k text;
    tq text;
    t bigint[] := '{0,0,0,0,0,0,0,0}';
    said jsonb[] := '{}';
    dropped jsonb[] := '{}';
    changed text[] := '{}';
    hot boolean;
    r lkq.live_1;
    was record;
    one record;
    place jsonb;
    refused jsonb;
    keys text[];
    kinds text[];
    tids tid[];
    ids bigint[];
    numbers int[];
    numbers_put bigint[];
    total int;
    room int;
    floor_ lkq.floors;
    many int;
    first int;
    last int;
    until float8;
    position int;
    lock bigint;
    size bigint;
    number bigint;
    the_item boolean;
    the_next boolean;
    nothing boolean;
BEGIN
    FOREACH lock IN ARRAY p_shared LOOP
        nothing := pg_advisory_xact_lock_shared(lock) IS NULL;
    END LOOP;
    FOREACH lock IN ARRAY p_alone LOOP
        nothing := pg_advisory_xact_lock(lock) IS NULL;
    END LOOP;
    IF lkq.has_letters_1(p_shared) THEN
        changed := lkq.receive_1(p_shared, p_now);
    END IF;
    IF p_names IS NOT NULL THEN
        PERFORM FROM (
            SELECT * FROM unnest(p_queues, p_names) n (queue, key) ORDER BY n.queue, n.key
        ) u CROSS JOIN LATERAL (
            SELECT FROM lkq.items i WHERE i.queue = u.queue AND i.key = u.key FOR UPDATE
        ) held;
    END IF;

    FOR step IN 0..jsonb_array_length(p_runs) - 1 LOOP
        -- Of each run anew: the one before it may have waited for somebody, and a lease lasts from
        -- the moment in which it is given.
        now_ := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
        run := p_runs->step;
        op := run->>'op';
        first := (run->>'n')::int;
        IF op = 'urgent' THEN
            -- A claim of several queues by urgency.
            PERFORM lkq.tally_1(tq, t);
            t := '{0,0,0,0,0,0,0,0}';
            tq := NULL;
            keys := ARRAY(SELECT e->>'queue' FROM jsonb_array_elements(run->'queues') e);
            UPDATE lkq.floors SET due = '-infinity' WHERE queue = ANY (keys) AND due > now_;
            changed := changed || lkq.arrive_1(keys, now_, p_history, false);
            SELECT array_agg(u.at), array_agg(u.number) INTO tids, numbers
            FROM lkq.urgent_1(now_, run) u;
            RETURN QUERY
            WITH chosen AS MATERIALIZED (
                SELECT u.at, nextval('lkq.fences') AS fence,
                    now_ + (run->'queues'->u.number - 1->>'lease')::float8 AS until,
                    p_call || '.' || first || '.' AS token
                FROM unnest(tids, numbers) u (at, number)
            )
            UPDATE lkq.items i SET state = 2, attempt = i.attempt + 1, due = c.until,
                turn = -c.fence, leased_at = now_, token = c.token || md5(p_secret || c.fence),
                counted = coalesce((SELECT f.counted FROM lkq.floors f WHERE f.queue = i.queue), false)
            FROM chosen c WHERE i.ctid = c.at
            RETURNING first, i.queue, i.key, i.value, i.id, i.token, c.fence, i.attempt,
                i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text, NULL::text;
            FOR one IN SELECT u.number, count(*) AS many FROM unnest(numbers) u (number) GROUP BY 1 LOOP
                PERFORM lkq.tally_1(keys[one.number], ARRAY[-one.many, 0, 0, one.many, 0, 0, 0, 0]);
                IF keys[one.number] <> ALL (changed) THEN
                    changed := changed || keys[one.number];
                END IF;
            END LOOP;
            CONTINUE;
        ELSIF op = 'claim' THEN
            -- A claim of several queues, of a key, of kinds, or with caps.
            total := (run->>'limit')::int;
            kinds := CASE WHEN run ? 'kinds'
                THEN ARRAY(SELECT jsonb_array_elements_text(run->'kinds')) END;
            FOR place IN SELECT e FROM jsonb_array_elements(run->'queues') e LOOP
                q := place->>0;
                room := least((place->>1)::int, total);
                until := now_ + (place->>2)::float8;
                IF q IS DISTINCT FROM tq THEN
                    PERFORM lkq.tally_1(tq, t);
                    t := '{0,0,0,0,0,0,0,0}';
                    tq := q;
                END IF;
                hot := false;
                floor_ := lkq.floor_1(q, now_);
                IF floor_.queue IS NOT NULL AND floor_.due = '-infinity' THEN
                    -- The clock was set back, and what begins now may end before what is known.
                    UPDATE lkq.floors SET due = '-infinity' WHERE queue = q AND due > now_;
                END IF;
                IF EXISTS (SELECT FROM lkq.items
                    WHERE queue = q AND due >= floor_.due AND due <= now_)
                THEN
                    hot := lkq.advance_1(q, now_, p_history, floor_.due);
                END IF;
                IF room > 0 THEN
                    IF jsonb_typeof(place->3) = 'object' AND lkq.hurried_1(q) THEN
                        -- A deadline may bring an item forward.
                        tids := ARRAY(SELECT u.at FROM lkq.urgent_1(now_, jsonb_strip_nulls(
                            jsonb_build_object(
                                'limit', room, 'kinds', run->'kinds', 'in_flight', t[4],
                                'queues', jsonb_build_array((place->3) || jsonb_build_object(
                                    'queue', q, 'most', room, 'caps', run->'caps'->q
                                ))
                            )
                        )) u);
                    ELSIF run->'caps'->q IS NOT NULL THEN
                        tids := lkq.capped_1(
                            now_, q, room, run->>'key', kinds, run->'caps'->q, t[4], false, NULL,
                            NULL, NULL
                        );
                    ELSIF run ? 'key' THEN
                        tids := ARRAY(
                            SELECT ctid FROM lkq.items
                            WHERE queue = q AND key = run->>'key' AND state + 0 = 0
                                AND (kinds IS NULL OR kind = ANY (kinds))
                            FOR UPDATE SKIP LOCKED
                        );
                    ELSIF floor_.place > 0 THEN
                        tids := ARRAY(SELECT lkq.ready_1(q, room, floor_.place, kinds));
                    ELSIF kinds IS NULL THEN
                        tids := ARRAY(
                            SELECT ctid FROM lkq.items WHERE queue = q AND state = 0
                            ORDER BY priority DESC, place LIMIT room FOR UPDATE SKIP LOCKED
                        );
                    ELSE
                        tids := ARRAY(
                            SELECT ctid FROM lkq.items
                            WHERE queue = q AND state = 0 AND kind = ANY (kinds)
                            ORDER BY priority DESC, place LIMIT room FOR UPDATE SKIP LOCKED
                        );
                    END IF;
                    IF cardinality(tids) > 0 THEN
                        RETURN QUERY
                        WITH chosen AS MATERIALIZED (
                            SELECT u.at, nextval('lkq.fences') AS fence,
                                p_call || '.' || first || '.' AS token
                            FROM unnest(tids) u (at)
                        )
                        UPDATE lkq.items i SET state = 2, attempt = i.attempt + 1, due = until,
                            turn = -c.fence, leased_at = now_, counted = floor_.counted,
                            token = c.token || md5(p_secret || c.fence)
                        FROM chosen c WHERE i.ctid = c.at
                        RETURNING first, i.queue, i.key, i.value, i.id, i.token, c.fence, i.attempt,
                            i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text, NULL::text;
                        GET DIAGNOSTICS many = ROW_COUNT;
                        total := total - many;
                        t[1] := t[1] - many;
                        t[4] := t[4] + many;
                        hot := true;
                    END IF;
                END IF;
                IF hot THEN
                    changed := changed || q;
                END IF;
            END LOOP;
            CONTINUE;
        END IF;

        q := run->>'queue';
        IF q IS DISTINCT FROM tq THEN
            nothing := lkq.tally_1(tq, t) IS NULL;
            t := '{0,0,0,0,0,0,0,0}';
            tq := q;
        END IF;
        hot := false;
        SELECT * INTO floor_ FROM lkq.floors WHERE queue = q; -- as `floor_1`
        IF floor_.place IS NULL THEN
            floor_.place := 0;
            floor_.counted := false;
        END IF;
        IF floor_.due IS NULL OR floor_.due > now_ THEN
            floor_.due := '-infinity';
        END IF;
        IF floor_.queue IS NOT NULL AND floor_.due = '-infinity' THEN
            -- The clock was set back, and what begins now may end before what is known.
            UPDATE lkq.floors SET due = '-infinity' WHERE queue = q AND due > now_;
        END IF;
        IF EXISTS (SELECT FROM lkq.items WHERE queue = q AND due >= floor_.due AND due <= now_) THEN
            hot := lkq.advance_1(q, now_, p_history, floor_.due);
        END IF;
        IF op = 'claims' THEN
            -- The same plain claim of up to `each` items many times.
            until := now_ + (run->>'lease')::float8;
            IF floor_.place = 0 THEN
                tids := ARRAY(
                    SELECT ctid FROM lkq.items WHERE queue = q AND state = 0
                    ORDER BY priority DESC, place LIMIT (run->>'many')::int FOR UPDATE SKIP LOCKED
                );
            ELSE
                tids := ARRAY(SELECT lkq.ready_1(q, (run->>'many')::int, floor_.place, NULL));
            END IF;
            many := cardinality(tids);
            IF many > 0 THEN
                RETURN QUERY
                WITH chosen AS MATERIALIZED (
                    SELECT u.at, nextval('lkq.fences') AS fence,
                        first + (u.n - 1)::int / (run->>'each')::int AS n
                    FROM unnest(tids) WITH ORDINALITY u (at, n)
                )
                UPDATE lkq.items i SET state = 2, attempt = i.attempt + 1, due = until,
                    turn = -c.fence, leased_at = now_, counted = floor_.counted,
                    token = p_call || '.' || c.n || '.' || md5(p_secret || c.fence)
                FROM chosen c WHERE i.ctid = c.at
                RETURNING c.n, i.queue, i.key, i.value, i.id, i.token, c.fence, i.attempt,
                    i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text, NULL::text;
            END IF;
            t[1] := t[1] - many;
            t[4] := t[4] + many;
            hot := hot OR many > 0;
        ELSIF op = 'acks' OR op = 'kept' THEN
            first := (run->>'from')::int;
            last := (run->>'to')::int;
            IF op = 'acks' THEN
                WITH held AS MATERIALIZED (
                    SELECT u.n, u.token, i.at
                    FROM unnest(p_keys[first:last], p_tokens[first:last])
                        WITH ORDINALITY u (key, token, n)
                    CROSS JOIN LATERAL (
                        SELECT i.ctid AS at FROM lkq.items i
                        WHERE i.queue = q AND i.key = u.key AND i.token = u.token AND i.next_id IS NULL
                            AND (i.due IS NULL OR i.due > now_)
                        OFFSET 0
                    ) i
                ), gone AS (
                    -- Somebody may have put a value beside it just now: what was seen must still hold.
                    DELETE FROM lkq.items i USING held
                    WHERE i.ctid = held.at AND i.token = held.token AND i.next_id IS NULL
                    RETURNING held.n
                )
                SELECT array_agg(n) INTO numbers FROM gone;
            ELSE
                WITH held AS MATERIALIZED (
                    SELECT u.n, u.token, u.due, u.result, i.at
                    FROM unnest(p_keys[first:last], p_tokens[first:last], p_deadlines[first:last],
                        p_values[first:last]) WITH ORDINALITY u (key, token, due, result, n)
                    CROSS JOIN LATERAL (
                        SELECT i.ctid AS at FROM lkq.items i
                        WHERE i.queue = q AND i.key = u.key AND i.token = u.token
                            AND i.next_id IS NULL AND (i.due IS NULL OR i.due > now_)
                        OFFSET 0
                    ) i
                ), gone AS (
                    DELETE FROM lkq.items i USING held
                    WHERE i.ctid = held.at AND i.token = held.token AND i.next_id IS NULL
                    RETURNING held.n, i.id, i.key, i.priority, i.attempt, i.put_at, held.due,
                        i.history, i.kind, held.result
                ), kept AS (
                    INSERT INTO lkq.done
                    (id, queue, key, priority, attempt, put_at, due, outcome, history, kind, value)
                    SELECT id, q, key, priority, attempt, put_at, now_ + due,
                        (run->>'outcome')::int, history, kind, result
                    FROM gone
                )
                SELECT array_agg(n) INTO numbers FROM gone;
            END IF;
            many := coalesce(cardinality(numbers), 0);
            IF many <= last - first THEN
                one := lkq.acks_1(q, now_, p_keys[first:last], p_tokens[first:last], numbers,
                    CASE op WHEN 'kept' THEN p_deadlines[first:last] END, (run->>'outcome')::int,
                    p_values[first:last]);
                many := many + one.ended;
                t[1] := t[1] + one.available;
                t[2] := t[2] - one.buffered;
                t[3] := t[3] + one.scheduled;
                said := said || jsonb_build_array((run->>'n')::int, 'refused', one.refused);
            END IF;
            t[4] := t[4] - many;
            IF op = 'kept' THEN
                t := lkq.step_done_1(t, (run->>'outcome')::int, many);
            END IF;
            hot := hot OR many > 0;
        ELSIF op = 'puts' THEN
            first := (run->>'from')::int;
            last := (run->>'to')::int;
            many := 0;
            IF first = last THEN
                INSERT INTO lkq.items
                (id, queue, key, state, priority, place, put_at, deadline, kind, value)
                VALUES (nextval('lkq.ids'), q, p_keys[first], 0, coalesce(p_priorities[first], 0),
                    nextval('lkq.places'), now_, now_ + p_deadlines[first], p_kinds[first],
                    p_values[first])
                ON CONFLICT (queue, key) DO NOTHING RETURNING id INTO number;
                many := (number IS NOT NULL)::int;
                ids := ARRAY[number];
                t[1] := t[1] + many;
            ELSIF EXISTS (
                SELECT FROM unnest(p_keys[first:last]) u (key) CROSS JOIN LATERAL (
                    SELECT FROM lkq.items i WHERE i.queue = q AND i.key = u.key OFFSET 0
                ) i
            ) THEN
                -- Live keys are locked in one order, whoever puts them.
                PERFORM FROM (
                    SELECT * FROM unnest(p_keys[first:last]) n (key) ORDER BY n.key
                ) u CROSS JOIN LATERAL (
                    SELECT FROM lkq.items i WHERE i.queue = q AND i.key = u.key FOR UPDATE
                ) held;
            ELSE
                -- New keys are, too, but their numbers are in the order of the requests.
                WITH new AS MATERIALIZED (
                    SELECT u.key, u.value, u.priority, u.kind, now_ + u.deadline AS deadline,
                        nextval('lkq.ids') AS id, nextval('lkq.places') AS place
                    FROM unnest(p_keys[first:last], p_values[first:last],
                        p_priorities[first:last], p_kinds[first:last], p_deadlines[first:last])
                        u (key, value, priority, kind, deadline)
                ), put AS (
                    INSERT INTO lkq.items
                    (id, queue, key, state, priority, place, put_at, deadline, kind, value)
                    SELECT id, q, key, 0, coalesce(priority, 0), place, now_, deadline, kind, value
                    FROM new ORDER BY key, id
                    ON CONFLICT (queue, key) DO NOTHING RETURNING id, key
                )
                SELECT count(*), array_agg(id ORDER BY id), array_agg(key ORDER BY id)
                INTO many, ids, keys FROM put;
                t[1] := t[1] + many;
            END IF;
            IF many <= last - first THEN
                -- Others have put some of them just now, or a key comes twice.
                numbers_put := '{}';
                position := 1;
                FOR i IN first..last LOOP
                    IF position <= many AND keys[position] = p_keys[i] THEN
                        numbers_put := numbers_put || ids[position];
                        position := position + 1;
                        CONTINUE;
                    END IF;
                    one := lkq.put_one_1(
                        now_, q, p_keys[i], p_values[i], p_tokens[i], p_priorities[i],
                        NULL, p_kinds[i], now_ + p_deadlines[i]
                    );
                    numbers_put := numbers_put || one.number;
                    t[1] := t[1] + one.available;
                    t[2] := t[2] + one.buffered;
                    t[3] := t[3] + one.scheduled;
                END LOOP;
                ids := numbers_put;
            END IF;
            said := said || jsonb_build_array((run->>'n')::int, 'ids', ids);
            hot := true;
        ELSIF op = 'put' THEN
            keys := ARRAY(SELECT jsonb_array_elements_text(run->'keys'));
            refused := lkq.refusal_1(
                q, keys, run->>'policy', (run->>'max_items')::bigint, t
            );
            IF refused IS NOT NULL THEN
                said := said || jsonb_build_array(first, 'no', refused);
            ELSE
                until := now_ + (run->>'delay')::float8;
                ids := '{}';
                FOR i IN 1..cardinality(keys) LOOP
                    one := lkq.put_one_1(
                        now_, q, keys[i], p_values[(run->>'from')::int + i - 1],
                        run->>'policy', (run->>'priority')::bigint, until, run->>'kind',
                        now_ + (run->>'deadline')::float8
                    );
                    ids := ids || one.number;
                    t[1] := t[1] + one.available;
                    t[2] := t[2] + one.buffered;
                    t[3] := t[3] + one.scheduled;
                END LOOP;
                said := said || jsonb_build_array(first, 'ids', ids);
                hot := true;
            END IF;
        ELSIF op = 'requeue' THEN
            SELECT b.key, b.priority, b.kind, b.value INTO was
            FROM lkq.buried b WHERE b.queue = q AND b.id = (run->>'id')::bigint FOR UPDATE;
            IF NOT FOUND THEN
                said := said || jsonb_build_array(first, 'is', false);
            ELSE
                refused := lkq.refusal_1(
                    q, ARRAY[was.key::text], run->>'policy', (run->>'max_items')::bigint, t
                );
                IF refused IS NOT NULL THEN
                    said := said || jsonb_build_array(first, 'no', refused);
                ELSE
                    one := lkq.put_one_1(now_, q, was.key, was.value, run->>'policy',
                        was.priority, NULL, was.kind);
                    DELETE FROM lkq.buried WHERE queue = q AND id = (run->>'id')::bigint;
                    t[1] := t[1] + one.available;
                    t[2] := t[2] + one.buffered;
                    t[3] := t[3] + one.scheduled;
                    t[5] := t[5] - 1;
                    said := said || jsonb_build_array(first, 'is', true);
                    hot := true;
                END IF;
            END IF;
        ELSIF op = 'discard' THEN
            DELETE FROM lkq.buried WHERE queue = q AND id = (run->>'id')::bigint;
            t[5] := t[5] - FOUND::int;
            IF NOT FOUND THEN
                DELETE FROM lkq.done WHERE queue = q AND id = (run->>'id')::bigint AND due > now_
                RETURNING outcome INTO many;
                IF FOUND THEN
                    t := lkq.step_done_1(t, many, -1);
                END IF;
            END IF;
            hot := hot OR FOUND;
            said := said || jsonb_build_array(first, 'is', FOUND);
        ELSIF op = 'purge' THEN
            size := 0;
            IF run->>'part' IN ('buried', 'all') THEN
                DELETE FROM lkq.buried WHERE queue = q;
                GET DIAGNOSTICS many = ROW_COUNT;
                t[5] := t[5] - many;
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
                    IF one.state = 0 THEN
                        t[1] := t[1] - one.many;
                    ELSIF one.state = 1 THEN
                        t[3] := t[3] - one.many;
                    ELSE
                        t[4] := t[4] - one.many;
                    END IF;
                    t[2] := t[2] - one.beside;
                    size := size + one.many + one.beside;
                END LOOP;
            END IF;
            hot := hot OR size > 0;
            said := said || jsonb_build_array(first, 'is', size);
        ELSE
            -- What else names a key: release, extend, bury and cancel.
            k := run->>'key';
            r := lkq.live_1(q, k);
            now_ := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
            IF op = 'cancel' THEN
                number := (run->>'id')::bigint;
                the_item := r.id IS NOT NULL AND (number IS NULL OR number = r.id);
                the_next := r.next_id IS NOT NULL AND (number IS NULL OR number = r.next_id);
                IF (run->>'keep')::float8 > 0 THEN
                    t := lkq.step_done_1(t, (run->>'outcome')::int, lkq.keep_1(
                        q, k, now_ + (run->>'keep')::float8, (run->>'outcome')::int,
                        p_values[(run->>'from')::int], the_item, the_next));
                END IF;
                IF the_item THEN
                    t := lkq.step_1(t, r.state, -1);
                    IF r.next_id IS NOT NULL THEN
                        t[2] := t[2] - 1;
                    END IF;
                    IF r.next_id IS NULL OR the_next THEN
                        DELETE FROM lkq.items WHERE queue = q AND key = k;
                    ELSE
                        r := lkq.follow_1(r, now_);
                        t := lkq.step_1(t, r.state, 1);
                        PERFORM lkq.write_1(q, k, r);
                    END IF;
                ELSIF the_next THEN
                    t[2] := t[2] - 1;
                    UPDATE lkq.items SET next_id = NULL, next_priority = NULL,
                        next_not_before = NULL, next_put_at = NULL, next_deadline = NULL,
                        next_kind = NULL, next_value = NULL
                    WHERE queue = q AND key = k;
                END IF;
                said := said || jsonb_build_array(first, 'is', the_item OR the_next);
                hot := hot OR the_item OR the_next;
            ELSIF r.token IS NULL OR r.token IS DISTINCT FROM run->>'token' OR r.due <= now_ THEN
                said := said || jsonb_build_array(first, 'no', '{}'::jsonb);
            ELSIF op = 'extend' THEN
                until := now_ + (run->>'lease')::float8;
                UPDATE lkq.items SET due = until WHERE queue = q AND key = k;
                said := said || jsonb_build_array(first, 'is', until);
                -- Who waits has to know of what comes due earlier than it would have.
                hot := hot OR until < coalesce(r.due, 'infinity');
            ELSE
                t[4] := t[4] - 1;
                hot := true;
                IF op = 'release' THEN
                    until := NULL;
                    IF (run->>'delay')::float8 <> 0 THEN
                        until := now_ + (run->>'delay')::float8;
                    END IF;
                    IF run->>'undo' = 'true' THEN
                        t[2] := t[2] - (r.next_id IS NOT NULL)::int;
                        r.attempt := r.attempt - 1;
                        r.token := NULL;
                        r.due := NULL;
                        r.state := 0;
                        IF r.next_id IS NOT NULL THEN
                            r.replaced := true;
                            r.priority := r.next_priority;
                            r.not_before := r.next_not_before;
                        END IF;
                        until := greatest(until, r.not_before);
                        r.not_before := NULL;
                        IF until > now_ THEN
                            r := lkq.place_1(r, until, now_, false);
                        ELSIF r.priority = 0 AND r.place >= 0 AND r.place < floor_.place THEN
                            UPDATE lkq.floors SET place = r.place
                            WHERE queue = q AND place > r.place;
                        END IF;
                    ELSE
                        t[2] := t[2] - (r.next_id IS NOT NULL)::int;
                        r.history := lkq.remember_1(r.history, r.attempt, now_, 'released',
                            run->>'error', p_history);
                        r := lkq.return_1(r, until, run->>'front' = 'true', now_);
                    END IF;
                ELSE
                    r.history := lkq.remember_1(r.history, r.attempt, now_, 'buried',
                        run->>'error', p_history);
                    INSERT INTO lkq.buried (id, number, queue, key, priority, attempt, put_at,
                        buried_at, error, history, kind, value)
                    SELECT id, nextval('lkq.burials'), queue, key, priority, attempt, put_at,
                        now_, run->>'error', r.history, kind, value
                    FROM lkq.items WHERE queue = q AND key = k;
                    t[5] := t[5] + 1;
                    SELECT sum(buried) INTO size FROM lkq.tallies WHERE queue = q;
                    WHILE coalesce(size, 0) + t[5] > p_buried LOOP
                        DELETE FROM lkq.buried WHERE ctid = (
                            SELECT ctid FROM lkq.buried WHERE queue || '' = q
                            ORDER BY queue || '', number LIMIT 1
                            FOR UPDATE SKIP LOCKED
                        ) RETURNING jsonb_build_array(queue, key) INTO refused;
                        EXIT WHEN NOT FOUND;
                        dropped := dropped || refused;
                        t[5] := t[5] - 1;
                    END LOOP;
                    said := said || jsonb_build_array(first, 'is', r.id);
                    IF r.next_id IS NULL THEN
                        DELETE FROM lkq.items WHERE queue = q AND key = k;
                        r.state := NULL;
                    ELSE
                        t[2] := t[2] - 1;
                        r := lkq.follow_1(r, now_);
                    END IF;
                END IF;
                IF r.state IS NOT NULL THEN
                    IF r.state = 0 THEN
                        t[1] := t[1] + 1;
                    ELSE
                        t[3] := t[3] + 1;
                    END IF;
                    PERFORM lkq.write_1(q, k, r);
                END IF;
            END IF;
        END IF;
        IF hot AND q <> ALL (changed) THEN
            changed := changed || q;
        END IF;
    END LOOP;
    nothing := lkq.tally_1(tq, t) IS NULL;

    n := -1;
    answers := jsonb_build_object('said', said, 'changed', changed, 'dropped', dropped)::text;
    IF changed <> '{}' THEN
        IF p_call IS NOT NULL THEN
            INSERT INTO lkq.calls (at, call, answers)
            VALUES (extract(epoch FROM now()), p_call, answers);
        END IF;
        nothing := lkq.tell_1(changed) IS NULL;
    END IF;
    RETURN NEXT;
END $$;

-- Put one item that nothing refuses, in one statement if its key is new, in two if it is live. If
-- something is due, it is left to `apply_1`. Returns the answers, as that does.
CREATE FUNCTION lkq.put_1(
    p_call text, p_now float8, p_buried int, p_history int, p_lock bigint, p_queue text,
    p_key text, p_policy text, p_value bytea, p_priority bigint, p_kind text, p_deadline float8
) RETURNS text
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_ float8;
    said text;
    nothing boolean := pg_advisory_xact_lock_shared(p_lock) IS NULL;
BEGIN
    now_ := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
    WITH put AS (
        INSERT INTO lkq.items
        (id, queue, key, state, priority, place, put_at, deadline, kind, value)
        SELECT nextval('lkq.ids'), p_queue, p_key, 0, coalesce(p_priority, 0),
            nextval('lkq.places'), now_, now_ + p_deadline, p_kind, p_value
        WHERE NOT EXISTS ( -- what has come due has its place before what is put
            SELECT FROM lkq.items WHERE queue = p_queue AND due <= now_ AND due >= coalesce(
                (SELECT due FROM lkq.floors WHERE queue = p_queue AND due <= now_), '-infinity')
        ) AND NOT EXISTS ( -- as `has_letters_1`
            SELECT FROM lkq.inbox WHERE gate = p_lock AND xact >= coalesce((
                SELECT xact FROM lkq.inbox_floors
                WHERE gate = p_lock AND xact <= pg_snapshot_xmax(pg_current_snapshot())
            ), '0')
        )
        ON CONFLICT (queue, key) DO NOTHING RETURNING id
    ), tally AS (
        INSERT INTO lkq.tallies (queue, available, buffered, scheduled, in_flight, buried, done)
        SELECT p_queue, 1, 0, 0, 0, 0, 0 FROM put
    ), call AS (
        INSERT INTO lkq.calls (at, call, answers)
        SELECT extract(epoch FROM now()), p_call, json_build_object(
            'said', json_build_array(json_build_array(0, 'ids', json_build_array(id))),
            'changed', json_build_array(p_queue), 'dropped', '{}'::text[])
        FROM put RETURNING answers
    )
    SELECT answers, CASE
        WHEN octet_length(p_queue) < 1000 -- else it may be too long to be told
        THEN pg_notify('lkq', json_build_array(p_queue)::text)
        ELSE lkq.tell_1(ARRAY[p_queue])
    END IS NULL
    INTO said, nothing FROM call;
    IF said IS NOT NULL THEN
        RETURN said;
    END IF;
    IF EXISTS (
        SELECT FROM lkq.items WHERE queue = p_queue AND due <= now_ AND due >= coalesce(
            (SELECT due FROM lkq.floors WHERE queue = p_queue AND due <= now_), '-infinity')
    ) OR lkq.has_letters_1(ARRAY[p_lock]) THEN
        RETURN (SELECT a.answers FROM lkq.apply_1(
            p_call, p_now, p_buried, p_history, NULL, ARRAY[p_lock], '{}', NULL, NULL,
            jsonb_build_array(jsonb_build_object(
                'op', 'puts', 'n', 0, 'queue', p_queue, 'from', 1, 'to', 1)),
            ARRAY[p_key], ARRAY[p_policy], ARRAY[p_value], ARRAY[p_priority], ARRAY[p_kind],
            ARRAY[p_deadline]
        ) a);
    END IF;
    WITH put AS MATERIALIZED (
        SELECT o.* FROM lkq.put_one_1(
            now_, p_queue, p_key, p_value, p_policy, p_priority, NULL, p_kind,
            now_ + p_deadline) o
    ), tally AS (
        INSERT INTO lkq.tallies (queue, available, buffered, scheduled, in_flight, buried, done)
        SELECT p_queue, available, buffered, scheduled, 0, 0, 0 FROM put
        WHERE available <> 0 OR buffered <> 0 OR scheduled <> 0
    ), call AS (
        INSERT INTO lkq.calls (at, call, answers)
        SELECT extract(epoch FROM now()), p_call, json_build_object(
            'said', json_build_array(json_build_array(0, 'ids', json_build_array(number))),
            'changed', json_build_array(p_queue), 'dropped', '{}'::text[])
        FROM put RETURNING answers
    )
    SELECT answers, CASE
        WHEN octet_length(p_queue) < 1000 -- else it may be too long to be told
        THEN pg_notify('lkq', json_build_array(p_queue)::text)
        ELSE lkq.tell_1(ARRAY[p_queue])
    END IS NULL
    INTO said, nothing FROM call;
    RETURN said;
END $$;

-- What a worker asks for, of one queue: acks that keep no result, each of another key, and a claim of
-- up to `p_each` items, once or several times, of some kinds or of any. It does in a few statements
-- what `apply_1` does, if nothing is due, and returns the same.
--
--   p_acked     how many acks there are
--   p_acks      their keys and their tokens, as JSON: it is read only if it is needed
--   p_tokens    their tokens, if it is known of all where their rows were when they were leased
--   p_at        where that is
--   p_first     the number of the first claim among the requests
--   p_many      how many items the claims lease together
--   p_urgency   by which deadlines bring items forward, if they may; then there is one claim
CREATE FUNCTION lkq.work_1(
    p_call text, p_now float8, p_buried int, p_history int, p_lock bigint, p_queue text,
    p_secret text, p_acked int, p_acks text, p_tokens text, p_at text, p_first int, p_many int,
    p_each int, p_lease float8, p_kinds text[], p_urgency jsonb
) RETURNS TABLE (
    n int, queue text, key text, value bytea, id bigint, token text, fence bigint, attempt int,
    priority bigint, expires_at float8, put_at float8, kind text, deadline float8, at text,
    answers text
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now_ float8;
    floor_ bigint;
    counted_ boolean;
    due_ boolean;
    acked int := p_acked;
    keys text[];
    tokens text[];
    leased int := 0;
    done int[];
    refused int[];
    ended int;
    buffered int := 0;
    available int := 0;
    scheduled int := 0;
    tids tid[];
    runs jsonb := '[]';
    nothing boolean := pg_advisory_xact_lock_shared(p_lock) IS NULL;
BEGIN
    now_ := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
    SELECT coalesce(f.place, 0), coalesce(f.counted, false), f.due > now_ OR EXISTS (
        SELECT FROM lkq.items i
        WHERE i.queue = p_queue AND i.due >= coalesce(f.due, '-infinity') AND i.due <= now_
    ) OR EXISTS ( -- as `has_letters_1`
        SELECT FROM lkq.inbox b WHERE b.gate = p_lock AND b.xact >= coalesce((
            SELECT l.xact FROM lkq.inbox_floors l
            WHERE l.gate = p_lock AND l.xact <= pg_snapshot_xmax(pg_current_snapshot())
        ), '0')
    )
    INTO floor_, counted_, due_ FROM (SELECT) one LEFT JOIN lkq.floors f ON f.queue = p_queue;
    IF due_ OR (p_urgency IS NOT NULL AND lkq.hurried_1(p_queue)) THEN
        IF acked > 0 THEN
            runs := jsonb_build_array(jsonb_build_object(
                'op', 'acks', 'n', 0, 'queue', p_queue, 'from', 1, 'to', acked));
        END IF;
        IF p_many > 0 AND p_kinds IS NULL AND p_urgency IS NULL THEN
            runs := runs || jsonb_build_object('op', 'claims', 'n', p_first, 'queue', p_queue,
                'many', p_many, 'each', p_each, 'lease', p_lease);
        ELSIF p_many > 0 THEN
            runs := runs || jsonb_strip_nulls(jsonb_build_object('op', 'claim', 'n', p_first,
                'limit', p_many, 'queues',
                jsonb_build_array(jsonb_build_array(p_queue, p_many, p_lease, p_urgency)),
                'kinds', p_kinds));
        END IF;
        RETURN QUERY SELECT * FROM lkq.apply_1(
            p_call, p_now, p_buried, p_history, p_secret, ARRAY[p_lock], '{}', NULL, NULL, runs,
            ARRAY(SELECT json_array_elements_text(p_acks::json->0)),
            ARRAY(SELECT json_array_elements_text(p_acks::json->1)), '{}', '{}', '{}', '{}'
        );
        RETURN;
    END IF;
    IF acked > 0 THEN
        IF p_at IS NOT NULL THEN
            WITH gone AS (
                DELETE FROM lkq.items i USING (
                    SELECT generate_series(1, acked) AS n,
                        unnest(string_to_array(p_tokens, ' ')) AS token,
                        unnest(string_to_array(p_at, ' ')::tid[]) AS at
                ) u
                WHERE i.ctid = u.at AND i.token = u.token AND i.next_id IS NULL
                    AND (i.due IS NULL OR i.due > now_)
                RETURNING u.n
            )
            SELECT array_agg(n) INTO done FROM gone;
        ELSE
            keys := ARRAY(SELECT json_array_elements_text(p_acks::json->0));
            tokens := ARRAY(SELECT json_array_elements_text(p_acks::json->1));
            WITH held AS MATERIALIZED (
                SELECT u.n, u.token, i.at
                FROM unnest(keys, tokens) WITH ORDINALITY u (key, token, n)
                CROSS JOIN LATERAL (
                    SELECT i.ctid AS at FROM lkq.items i
                    WHERE i.queue = p_queue AND i.key = u.key AND i.token = u.token
                        AND i.next_id IS NULL AND (i.due IS NULL OR i.due > now_)
                    OFFSET 0
                ) i
            ), gone AS (
                -- Somebody may have put a value beside it just now: what was seen must still hold.
                DELETE FROM lkq.items i USING held
                WHERE i.ctid = held.at AND i.token = held.token AND i.next_id IS NULL
                RETURNING held.n
            )
            SELECT array_agg(n) INTO done FROM gone;
        END IF;
        IF done IS NULL OR cardinality(done) < acked THEN
            -- Among them those whose rows have moved since.
            SELECT * INTO refused, ended, buffered, available, scheduled
            FROM lkq.acks_1(p_queue, now_,
                coalesce(keys, ARRAY(SELECT json_array_elements_text(p_acks::json->0))),
                coalesce(tokens, ARRAY(SELECT json_array_elements_text(p_acks::json->1))), done,
                NULL, NULL, NULL);
            acked := coalesce(cardinality(done), 0) + ended;
        END IF;
    END IF;
    IF p_many > 0 THEN
        -- The acks may have waited for somebody.
        now_ := coalesce(p_now, extract(epoch FROM clock_timestamp())::float8);
        IF floor_ > 0 THEN
            tids := ARRAY(SELECT lkq.ready_1(p_queue, p_many, floor_, p_kinds));
        ELSIF p_kinds IS NULL THEN
            tids := ARRAY(
                SELECT ctid FROM lkq.items WHERE queue = p_queue AND state = 0
                ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED
            );
        ELSE
            tids := ARRAY(
                SELECT ctid FROM lkq.items
                WHERE queue = p_queue AND state = 0 AND kind = ANY (p_kinds)
                ORDER BY priority DESC, place LIMIT p_many FOR UPDATE SKIP LOCKED
            );
        END IF;
        leased := cardinality(tids);
        IF leased > 0 THEN
            RETURN QUERY
            WITH chosen AS MATERIALIZED (
                SELECT u.at, nextval('lkq.fences') AS fence, p_first + (u.n - 1)::int / p_each AS n
                FROM unnest(tids) WITH ORDINALITY u (at, n)
            )
            UPDATE lkq.items i SET state = 2, attempt = i.attempt + 1, due = now_ + p_lease,
                turn = -c.fence, leased_at = now_, counted = counted_,
                token = p_call || '.' || c.n || '.' || md5(p_secret || c.fence)
            FROM chosen c WHERE i.ctid = c.at
            RETURNING c.n, i.queue, i.key, i.value, i.id, i.token, c.fence, i.attempt,
                i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text, NULL::text;
        END IF;
    END IF;

    n := -1;
    answers := json_build_object(
        'said', CASE WHEN refused IS NULL THEN '[]'
            ELSE json_build_array(json_build_array(0, 'refused', refused)) END,
        'changed', CASE WHEN acked + leased > 0 THEN json_build_array(p_queue) ELSE '[]' END,
        'dropped', '{}'::text[]);
    RETURN NEXT;
    IF acked + leased > 0 THEN
        WITH tally AS (
            INSERT INTO lkq.tallies (queue, available, buffered, scheduled, in_flight, buried, done)
            VALUES (p_queue, available - leased, -buffered, scheduled, leased - acked, 0, 0)
        ), call AS (
            INSERT INTO lkq.calls (at, call, answers)
            VALUES (extract(epoch FROM now()), p_call, answers)
        )
        SELECT CASE
            WHEN octet_length(p_queue) < 1000
            THEN pg_notify('lkq', json_build_array(p_queue)::text)
            ELSE lkq.tell_1(ARRAY[p_queue])
        END IS NULL INTO nothing;
    END IF;
END $$;

-- Let those who listen know which queues changed; an empty list stands for all.
CREATE FUNCTION lkq.tell_1(p_queues text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    said text := to_json(p_queues)::text;
BEGIN
    PERFORM pg_notify('lkq', CASE WHEN octet_length(said) < 7900 THEN said ELSE '[]' END);
END $$;

-- What follows shows what is there, as of now: what has come due is dealt with first.

-- Returns the queues in which something has moved. Others are told, unless the caller does it, who has
-- then also looked into the inbox: to wait for whoever empties it is for those who hold no item yet.
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
    IF p_tell AND lkq.has_letters_1(gates) THEN
        PERFORM pg_advisory_xact_lock_shared(n.gate) FROM unnest(gates) n (gate);
        moved := lkq.receive_1(gates, p_now);
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

-- Deal with what is due, forget what is old, and tell for each queue how many seconds it is to what
-- comes next in it.
CREATE FUNCTION lkq.sweep_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (queue text, seconds float8, moved boolean)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
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

-- Add up the tallies of a queue; forget results that are old, and calls that nobody is going to ask
-- for. Returns the queues in which there may be more of it.
CREATE FUNCTION lkq.tidy_1(p_queues text[], p_now float8, p_from text, p_before text)
RETURNS text[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
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
            )) RETURNING available, buffered, scheduled, in_flight, buried, done, done_failed,
                done_cancelled
        )
        INSERT INTO lkq.tallies (queue, available, buffered, scheduled, in_flight, buried, done,
            done_failed, done_cancelled)
        SELECT q, a, b, s, i, u, d, f, c FROM (
            SELECT sum(available) a, sum(buffered) b, sum(scheduled) s, sum(in_flight) i,
                sum(buried) u, sum(done) d, sum(done_failed) f, sum(done_cancelled) c FROM old
        ) new
        WHERE a <> 0 OR b <> 0 OR s <> 0 OR i <> 0 OR u <> 0 OR d <> 0 OR f <> 0 OR c <> 0;
    END LOOP;
    RETURN untidy;
END $$;

CREATE FUNCTION lkq.count_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (
    queue text, available bigint, scheduled bigint, in_flight bigint, buried bigint, done bigint,
    done_failed bigint, done_cancelled bigint
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    q text;
BEGIN
    IF p_queues IS NULL THEN
        p_queues := ARRAY(
            SELECT queue FROM lkq.tallies
            UNION SELECT queue FROM (SELECT queue FROM lkq.inbox ORDER BY gate, number) b
            ORDER BY queue
        );
    END IF;
    PERFORM lkq.arrive_1(p_queues, now_, p_history);
    FOREACH q IN ARRAY p_queues LOOP
        RETURN QUERY SELECT q, sum(available + buffered)::bigint, sum(scheduled)::bigint,
            sum(in_flight)::bigint, sum(buried)::bigint, (sum(done) - max(old.many))::bigint,
            (sum(done_failed) - max(old.failed))::bigint,
            (sum(done_cancelled) - max(old.cancelled))::bigint
        FROM lkq.tallies, (
            SELECT count(*) AS many, count(*) FILTER (WHERE d.outcome = 1) AS failed,
                count(*) FILTER (WHERE d.outcome = 2) AS cancelled
            FROM lkq.done d WHERE d.queue || '' = q AND d.due <= now_
        ) old WHERE queue = q;
    END LOOP;
END $$;

CREATE FUNCTION lkq.list_1(
    p_queue text, p_now float8, p_history int, p_states int[], p_prefix text, p_after bigint,
    p_limit bigint, p_keys text[]
) RETURNS TABLE (
    id bigint, key text, state int, value bytea, priority bigint, attempt int, put_at float8,
    place bigint, due float8, error text, history text, kind text, leased_at float8, token text,
    deadline float8, outcome int
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
BEGIN
    PERFORM lkq.arrive_1(ARRAY[p_queue], now_, p_history);
    IF p_keys IS NOT NULL THEN
        RETURN QUERY
        SELECT i.id, i.key, i.state::int, i.value, i.priority, i.attempt, i.put_at, i.place, i.due,
            '', i.history::text, i.kind, i.leased_at, i.token, i.deadline, NULL::int
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) i
        UNION ALL
        SELECT i.next_id, i.key, 3, i.next_value, i.next_priority, 0, i.next_put_at, 0,
            i.next_not_before, '', NULL, i.next_kind, NULL, NULL, i.next_deadline, NULL
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) i
        WHERE i.next_id IS NOT NULL
        UNION ALL
        SELECT b.id, b.key, 4, b.value, b.priority, b.attempt, b.put_at, 0, NULL, b.error,
            b.history::text, b.kind, NULL, NULL, NULL, NULL
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.buried f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) b
        WHERE 4 = ANY (p_states)
        UNION ALL
        SELECT d.id, d.key, 5, d.value, d.priority, d.attempt, d.put_at, 0, d.due, '',
            d.history::text, d.kind, NULL, NULL, NULL, d.outcome
        FROM unnest(p_keys) u (key) CROSS JOIN LATERAL (
            SELECT * FROM lkq.done f
            WHERE f.queue || '' || '' = p_queue AND f.key = u.key OFFSET 0
        ) d
        WHERE d.due > now_ AND 5 = ANY (p_states)
        ORDER BY 1;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT * FROM (
        (SELECT i.id, i.key, i.state::int, i.value, i.priority, i.attempt, i.put_at, i.place,
            i.due, '', i.history::text, i.kind, i.leased_at, i.token, i.deadline, NULL::int
        -- Each state for itself: who looks for the leased items does not walk over all that wait.
        FROM (VALUES (0), (1), (2)) s (state) CROSS JOIN LATERAL (
            SELECT * FROM lkq.items f WHERE f.queue || '' = p_queue AND f.state = s.state
                AND f.id > p_after AND starts_with(f.key, p_prefix)
            ORDER BY f.queue || '', f.state, f.id LIMIT p_limit
        ) i WHERE s.state = ANY (p_states))
        UNION ALL
        (SELECT i.next_id, i.key, 3, i.next_value, i.next_priority, 0, i.next_put_at, 0,
            i.next_not_before, '', NULL, i.next_kind, NULL, NULL, i.next_deadline, NULL
        FROM lkq.items i WHERE i.queue = p_queue AND i.next_id > p_after AND i.next_id IS NOT NULL
            AND 3 = ANY (p_states) AND starts_with(i.key, p_prefix)
        ORDER BY i.queue, i.next_id LIMIT p_limit)
        UNION ALL
        (SELECT b.id, b.key, 4, b.value, b.priority, b.attempt, b.put_at, 0, NULL, b.error,
            b.history::text, b.kind, NULL, NULL, NULL, NULL
        FROM lkq.buried b WHERE b.queue = p_queue AND b.id > p_after
            AND 4 = ANY (p_states) AND starts_with(b.key, p_prefix)
        ORDER BY b.queue, b.id LIMIT p_limit)
        UNION ALL
        (SELECT d.id, d.key, 5, d.value, d.priority, d.attempt, d.put_at, 0, d.due, '',
            d.history::text, d.kind, NULL, NULL, NULL, d.outcome
        FROM lkq.done d WHERE d.queue = p_queue AND d.id > p_after AND d.due > now_
            AND 5 = ANY (p_states) AND starts_with(d.key, p_prefix)
        ORDER BY d.queue, d.id LIMIT p_limit)
    ) listed ORDER BY 1 LIMIT p_limit;
END $$;

CREATE FUNCTION lkq.heads_1(p_queues text[], p_now float8, p_history int)
RETURNS TABLE (
    n int, id bigint, key text, state int, value bytea, priority bigint, attempt int,
    put_at float8, place bigint, due float8, error text, history text, kind text,
    leased_at float8, token text, deadline float8, outcome int
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM lkq.arrive_1(p_queues, lkq.now_1(p_now), p_history);
    FOR number IN 1..cardinality(p_queues) LOOP
        RETURN QUERY
        SELECT number, i.id, i.key, 0, i.value, i.priority, i.attempt, i.put_at, i.place,
            NULL::float8, '', i.history::text, i.kind, NULL::float8, NULL, i.deadline, NULL::int
        FROM (
            (SELECT * FROM lkq.items
            WHERE queue = p_queues[number] AND state = 0 AND priority > 0
            ORDER BY priority DESC, place LIMIT 1)
            UNION ALL
            (SELECT * FROM lkq.items
            WHERE queue = p_queues[number] AND state = 0 AND priority = 0 AND place < 0
            ORDER BY place LIMIT 1)
            UNION ALL
            (SELECT * FROM lkq.items
            WHERE queue = p_queues[number] AND state = 0 AND priority = 0
                AND place >= (lkq.floor_1(p_queues[number], 'infinity')).place
            ORDER BY place LIMIT 1)
            UNION ALL
            (SELECT * FROM lkq.items
            WHERE queue = p_queues[number] AND state = 0 AND priority < 0
            ORDER BY priority DESC, place LIMIT 1)
        ) i LIMIT 1;
    END LOOP;
END $$;

CREATE FUNCTION lkq.results_1(p_queue text, p_now float8, p_ids bigint[])
RETURNS TABLE (
    id bigint, key text, state int, value bytea, priority bigint, attempt int, put_at float8,
    place bigint, due float8, error text, history text, kind text, leased_at float8, token text,
    deadline float8, outcome int
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.id, d.key, 5, d.value, d.priority, d.attempt, d.put_at, 0::bigint, d.due, '',
        d.history::text, d.kind, NULL::float8, NULL, NULL::float8, d.outcome::int
    FROM unnest(p_ids) u (id) CROSS JOIN LATERAL (
        SELECT * FROM lkq.done f WHERE f.queue = p_queue AND f.id = u.id OFFSET 0
    ) d
    WHERE d.due > lkq.now_1(p_now);
END $$;

-- What a lost call has claimed, for its client.
CREATE FUNCTION lkq.claimed_1(p_queues text[], p_call text)
RETURNS TABLE (
    n int, queue text, key text, value bytea, id bigint, token text, fence bigint, attempt int,
    priority bigint, expires_at float8, put_at float8, kind text, deadline float8, at text
)
LANGUAGE sql
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    SELECT split_part(i.token, '.', 3)::int, i.queue, i.key, i.value, i.id, i.token, -i.turn,
        i.attempt, i.priority, i.due, i.put_at, i.kind, i.deadline, i.ctid::text
    FROM lkq.items i
    WHERE i.queue = ANY (p_queues) AND i.state = 2 AND i.turn < 0
        AND starts_with(i.token, p_call || '.')
    ORDER BY -i.turn
$$;

-- Put items in the transaction of the caller, all of them or none. They come to the queue when that
-- has committed. Refused is what can be seen now to be against the policy; it is too late for that
-- later, so a key that is leased when they come has the value beside it. Returns the ids that the
-- items get whose keys are not live then, or why they are refused.
CREATE FUNCTION lkq.post_1(
    p_queue text, p_keys text[], p_values bytea[], p_policy text, p_priority bigint,
    p_delay float8, p_most bigint, p_kind text
) RETURNS jsonb
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    gate_ bigint := lkq.lock_1('queue', p_queue);
    on_its_way bigint := 0;
    refused jsonb;
    ids jsonb;
BEGIN
    IF p_most > 0 THEN
        SELECT count(DISTINCT b.key) INTO on_its_way FROM lkq.inbox b
        WHERE b.gate = gate_ AND b.key <> ALL (p_keys) AND NOT EXISTS (
            SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key = b.key
        );
    END IF;
    refused := lkq.refusal_1(
        p_queue, p_keys, p_policy, p_most, ARRAY[on_its_way, 0, 0, 0, 0, 0, 0, 0], false
    );
    IF refused IS NOT NULL THEN
        RETURN jsonb_build_array(0, 'no', refused);
    END IF;
    WITH new AS (
        INSERT INTO lkq.inbox (gate, id, queue, key, kind, policy, priority, due, value)
        SELECT gate_, nextval('lkq.ids'), p_queue, u.key, p_kind,
            CASE p_policy WHEN 'reject' THEN 'buffer' ELSE p_policy END, p_priority,
            extract(epoch FROM clock_timestamp())::float8 + p_delay, u.value
        FROM unnest(p_keys, p_values) u (key, value)
        RETURNING number, id
    )
    SELECT jsonb_agg(new.id ORDER BY new.number) INTO ids FROM new;
    PERFORM lkq.tell_1(ARRAY[p_queue]);
    RETURN jsonb_build_array(0, 'ids', ids);
END $$;

-- For programs in any language: put an item in the transaction of the caller. Returns the id that it
-- gets if its key is not live when the transaction has committed. The value is JSON. `delay` in
-- seconds from now, and `if_in_flight` is 'update', 'buffer' or 'reject'.
CREATE FUNCTION lkq.put(
    queue text, key text, value jsonb, priority bigint DEFAULT NULL, delay float8 DEFAULT NULL,
    if_in_flight text DEFAULT 'update', kind text DEFAULT ''
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    said jsonb;
BEGIN
    IF queue IS NULL OR queue = '' OR key IS NULL OR key = '' OR value IS NULL
        OR length(queue) > 512 OR length(key) > 512 OR length(kind) > 512
        OR if_in_flight NOT IN ('update', 'buffer', 'reject') OR delay < 0
    THEN
        RAISE EXCEPTION 'a put needs a queue, a key and a value that make sense'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    said := lkq.post_1(queue, ARRAY[key], ARRAY[convert_to(value::text, 'UTF8')], if_in_flight,
        priority, delay, 0, coalesce(kind, ''));
    IF said->>1 <> 'ids' THEN
        RAISE EXCEPTION 'key % is in flight', key USING ERRCODE = 'object_in_use';
    END IF;
    RETURN (said->2->>0)::bigint;
END $$;
