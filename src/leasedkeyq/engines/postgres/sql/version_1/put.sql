-- Put items that nothing refuses, in their order, in the queue of a tally. Returns the tally and the
-- ids; those of the caller are used where they are given.
--
-- New keys are inserted by one statement, in the order of the keys: two batches that put the same new
-- keys cannot wait for each other in a circle. Ids and places are given out before that, in the order
-- of the requests. Keys that are live are dealt with one by one.
CREATE FUNCTION lkq.put_items_1(
    INOUT t lkq.tallies, p_now float8, p_keys text[], p_policies text[], p_values bytea[],
    p_priorities bigint[], p_kinds text[], p_deadlines float8[], p_dues float8[],
    INOUT ids bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    many int := cardinality(p_keys);
    places bigint[] := ARRAY(SELECT nextval('lkq.places') FROM generate_series(1, many));
    rest int[]; -- the numbers of the items that are not put yet; null: all
    again int[];
    put bigint[]; -- the places of those that were new
    scheduled_ int;
    one record;
    n int;
BEGIN
    IF ids IS NULL THEN
        ids := ARRAY(SELECT nextval('lkq.ids') FROM generate_series(1, many));
    END IF;
    FOR tries IN 1..1000 LOOP
        WITH new AS (
            SELECT u.id, t.queue, u.key, u.priority, u.place, p_now AS put_at, u.deadline,
                CASE WHEN u.due > p_now THEN u.due END AS due, u.kind, u.value
            FROM unnest(ids, places, p_keys, p_values, p_priorities, p_kinds, p_deadlines, p_dues)
                WITH ORDINALITY u (id, place, key, value, priority, kind, deadline, due, n)
            WHERE rest IS NULL OR u.n = ANY (rest)
            ORDER BY u.key, u.n
        ), added AS (
            --> include insert_items
        )
        SELECT array_agg(a.place), sum(a.state) INTO put, scheduled_ FROM added a;
        IF put IS NOT NULL THEN
            t.available := t.available + cardinality(put) - scheduled_;
            t.scheduled := t.scheduled + scheduled_;
        END IF;
        IF rest IS NULL THEN
            EXIT WHEN cardinality(put) = many;
            rest := ARRAY(SELECT generate_series(1, many));
        END IF;
        -- Others have put some of the keys, or a key comes twice.
        rest := ARRAY(
            SELECT max(found.n) FROM (
                SELECT r.n, places[r.n] AS place FROM unnest(rest) r (n)
                UNION ALL SELECT NULL, u.place FROM unnest(put) u (place)
            ) found GROUP BY found.place HAVING count(*) = 1 ORDER BY 1
        );
        PERFORM FROM (
            SELECT DISTINCT p_keys[r.n] AS key, t.queue FROM unnest(rest) r (n) ORDER BY 1
        ) u
        --> include hold_items
        again := '{}';
        FOREACH n IN ARRAY rest LOOP
            one := lkq.put_on_live_1(t.queue, p_now, p_keys[n], p_policies[n], p_values[n],
                p_priorities[n], p_kinds[n], p_now + p_deadlines[n], p_dues[n], ids[n], places[n]);
            IF one.id IS NULL THEN
                -- Its key was live a moment ago. What is put behind it comes behind it: its key may
                -- come again.
                again := ARRAY(
                    SELECT u.later FROM unnest(rest) u (later) WHERE u.later >= n ORDER BY 1
                );
                EXIT;
            END IF;
            ids[n] := one.id;
            t.available := t.available + one.available;
            t.buffered := t.buffered + one.buffered;
            t.scheduled := t.scheduled + one.scheduled;
        END LOOP;
        EXIT WHEN again = '{}';
        rest := again;
        IF tries = 1000 THEN
            -- In a transaction that does not see what others have committed since it began.
            RAISE EXCEPTION 'key % was put by another transaction', p_keys[rest[1]]
                USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
END $$;

-- Put an item whose key is live. Returns the id of the item that has the value now, and what that adds
-- to the tally; no id if the key is not live. A key that was leased after a look that found it free
-- makes the call begin anew.
CREATE FUNCTION lkq.put_on_live_1(
    p_queue text, p_now float8, p_key text, p_policy text, p_value bytea, p_priority bigint,
    p_kind text, p_deadline float8, p_due float8, p_id bigint, p_place bigint,
    OUT id bigint, OUT available int, OUT buffered int, OUT scheduled int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r lkq.live_1 := lkq.live_1(p_queue, p_key);
    until float8 := CASE WHEN p_due > p_now THEN p_due END;
BEGIN
    id := r.id;
    available := 0;
    buffered := 0;
    scheduled := 0;
    IF r.id IS NULL THEN
        RETURN;
    END IF;
    IF r.state <> 2 THEN
        IF p_priority <> r.priority THEN
            r.priority := p_priority;
            IF r.state = 0 THEN
                r.place := p_place;
            END IF;
        END IF;
        IF p_due IS NOT NULL AND (r.state = 1 OR until IS NOT NULL) THEN
            available := -(r.state = 0)::int;
            scheduled := -(r.state = 1)::int;
            r := lkq.place_1(r, p_due, p_now, false, p_place);
            available := available + (r.state = 0)::int;
            scheduled := scheduled + (r.state = 1)::int;
        END IF;
        UPDATE lkq.items SET state = r.state, priority = r.priority, place = r.place,
            turn = r.turn, due = r.due, deadline = p_deadline, kind = p_kind, value = p_value
        WHERE queue = p_queue AND key = p_key;
    ELSIF p_policy = 'reject' THEN
        RAISE EXCEPTION 'key % was leased by another transaction', p_key
            USING ERRCODE = 'serialization_failure';
    ELSIF r.next_id IS NULL AND p_policy <> 'buffer' THEN
        IF p_priority <> r.priority THEN
            r.priority := p_priority;
            r.place := p_place;
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
        id := coalesce(r.next_id, p_id);
        IF p_priority <> r.next_priority THEN
            r.next_priority := p_priority;
            r.place := p_place;
        END IF;
        IF p_due IS NOT NULL THEN
            r.next_not_before := until;
        END IF;
        UPDATE lkq.items SET next_id = coalesce(r.next_id, p_id), next_priority = r.next_priority,
            place = r.place, next_not_before = r.next_not_before, next_kind = p_kind,
            next_value = p_value, next_put_at = coalesce(next_put_at, p_now),
            next_deadline = p_deadline
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
    p_queue text, p_keys text[], p_policy text, p_most bigint, t lkq.tallies,
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
        PERFORM FROM (
            SELECT DISTINCT k.key, p_queue AS queue FROM unnest(p_keys) k (key) ORDER BY k.key
        ) u
        --> include hold_items
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
        AND lkq.waiting_1(p_queue) + t.available + t.buffered + t.scheduled + need > p_most
    THEN
        RETURN jsonb_build_object('full', p_most);
    END IF;
    RETURN NULL;
END $$;
