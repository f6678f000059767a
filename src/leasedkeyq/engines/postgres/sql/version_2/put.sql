-- Put items that nothing refuses, in their order, in the queue of a tally. Returns the tally, the ids, and
-- what was done with each, as a digit for each, as `PUT_OUTCOMES` in Python has them; null if all were
-- added. The ids of the caller are kept where they are given. Of items with the policy "skip",
-- `p_uniques` says for how many seconds after its end a completed result stands for its key.
--
-- New keys are inserted by one statement, in the order of the keys: two batches that put the same new
-- keys cannot wait for each other in a circle. Ids and places are given out before that, in the order
-- of the requests. Keys that are live are dealt with one by one, but for values that are all appended.
CREATE FUNCTION lkq.put_items_1(
    INOUT t lkq.tallies, p_now float8, p_keys text[], p_policies text[], p_values bytea[],
    p_priorities bigint[], p_kinds text[], p_deadlines float8[], p_dues float8[],
    p_uniques float8[], INOUT ids bigint[], OUT outcomes text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    many int := cardinality(p_keys);
    places bigint[] := ARRAY(SELECT nextval('lkq.places') FROM generate_series(1, many));
    keeps_ids boolean := ids IS NOT NULL;
    uniques boolean := coalesce(0 < ANY (p_uniques), false);
    results bigint[]; -- the ids of the results that stand for keys
    done_ int[]; -- what was done with each; null: all were added
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
        IF uniques THEN
            results := lkq.unique_results_1(t.queue, p_now, p_keys, p_uniques);
        END IF;
        WITH new AS (
            SELECT u.id, t.queue, u.key, u.priority, u.place, p_now AS put_at, u.deadline,
                CASE WHEN u.due > p_now THEN u.due END AS due, u.kind, u.value
            FROM unnest(ids, places, p_keys, p_values, p_priorities, p_kinds, p_deadlines, p_dues,
                    results)
                WITH ORDINALITY u (id, place, key, value, priority, kind, deadline, due, result, n)
            WHERE (rest IS NULL OR u.n = ANY (rest)) AND u.result IS NULL
            ORDER BY u.key, u.n
        ), added AS (
            --> include insert_items
        )
        SELECT array_agg(a.place), sum(a.state) INTO put, scheduled_ FROM added a;
        IF uniques AND put IS NOT NULL THEN
            -- An ack may have kept its result since, for which the insertion has waited.
            results := lkq.unique_results_1(t.queue, p_now, p_keys, p_uniques);
            WITH gone AS (
                DELETE FROM lkq.items i WHERE i.ctid = ANY (ARRAY(
                    SELECT f.at FROM unnest(p_keys, places, results) u (key, place, result)
                    CROSS JOIN LATERAL (
                        SELECT i.ctid AS at FROM lkq.items i
                        WHERE i.queue = t.queue AND i.key = u.key AND i.place = u.place
                        OFFSET 0
                    ) f WHERE u.result IS NOT NULL
                )) RETURNING i.place, i.state
            )
            SELECT ARRAY(SELECT unnest(put) EXCEPT SELECT g.place FROM gone g),
                scheduled_ - (SELECT coalesce(sum(g.state), 0) FROM gone g)
            INTO put, scheduled_;
        END IF;
        IF put IS NOT NULL THEN
            t.available := t.available + cardinality(put) - scheduled_;
            t.scheduled := t.scheduled + scheduled_;
        END IF;
        IF rest IS NULL THEN
            EXIT WHEN cardinality(put) = many;
            rest := ARRAY(SELECT generate_series(1, many));
            done_ := array_fill(0, ARRAY[many]);
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
        IF NOT keeps_ids AND NOT EXISTS (
            SELECT FROM unnest(rest) r (n) WHERE p_policies[r.n] <> 'append'
        ) THEN
            one := lkq.append_items_1(t, p_now, rest, p_keys, p_values, p_priorities, p_kinds,
                p_deadlines, p_dues, ids);
            t := one.t;
            FOR place IN 1..cardinality(one.numbers) LOOP
                n := one.numbers[place];
                ids[n] := one.ids[place];
                done_[n] := 3;
            END LOOP;
            again := ARRAY(SELECT unnest(rest) EXCEPT SELECT unnest(one.numbers) ORDER BY 1);
            rest := '{}';
        ELSE
            again := '{}';
        END IF;
        FOREACH n IN ARRAY rest LOOP
            one := lkq.put_on_live_1(t.queue, p_now, p_keys[n], p_policies[n], p_values[n],
                p_priorities[n], p_kinds[n], p_now + p_deadlines[n], p_dues[n], ids[n], keeps_ids,
                places[n]);
            IF one.id IS NULL AND results[n] IS NOT NULL THEN
                ids[n] := results[n];
                done_[n] := 4;
            ELSIF one.id IS NULL THEN
                -- Its key was live a moment ago. What is put behind it comes behind it: its key may
                -- come again.
                again := ARRAY(
                    SELECT u.later FROM unnest(rest) u (later) WHERE u.later >= n ORDER BY 1
                );
                EXIT;
            ELSE
                ids[n] := one.id;
                done_[n] := one.outcome;
                t.available := t.available + one.available;
                t.scheduled := t.scheduled + one.scheduled;
                t.in_line := t.in_line + one.in_line;
                t.held := t.held + one.held;
            END IF;
        END LOOP;
        EXIT WHEN again = '{}';
        rest := again;
        IF tries = 1000 THEN
            -- In a transaction that does not see what others have committed since it began.
            RAISE EXCEPTION 'key % was put by another transaction', p_keys[rest[1]]
                USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    outcomes := array_to_string(done_, '');
END $$;

-- Append the items with these numbers to the lines of their keys, whose rows are locked. Returns the
-- numbers of those whose keys are live, and the ids that they have now.
--
-- By one statement, for a line of 10,000 values in one put: each update of the row of the head would leave
-- a version behind that the next one has to pass, and none of them can go before the transaction ends.
CREATE FUNCTION lkq.append_items_1(
    INOUT t lkq.tallies, p_now float8, p_rest int[], p_keys text[], p_values bytea[],
    p_priorities bigint[], p_kinds text[], p_deadlines float8[], p_dues float8[], p_ids bigint[],
    OUT numbers int[], OUT ids bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    wanted boolean[] := array_fill(false, ARRAY[cardinality(p_keys)]);
    n int;
    held_ bigint;
BEGIN
    FOREACH n IN ARRAY p_rest LOOP
        wanted[n] := true;
    END LOOP;
    WITH found AS MATERIALIZED (
        SELECT u.*, h.at, h.state AS state_, h.last_id AS last_id_
        FROM (
            SELECT k.*, row_number() OVER (PARTITION BY k.key ORDER BY k.nth) AS of_key,
                count(*) OVER (PARTITION BY k.key) AS many,
                min(k.id) OVER (PARTITION BY k.key) AS first_id
            FROM unnest(p_ids, p_keys, p_values, p_priorities, p_kinds, p_deadlines, p_dues, wanted)
                WITH ORDINALITY k (id, key, value, priority, kind, deadline, due, is_wanted, nth)
            WHERE k.is_wanted
        ) u
        -- Once for each key: the row of its head, and the last id that the key has.
        LEFT JOIN LATERAL (
            SELECT f.ctid AS at, f.state, greatest(f.id, (
                SELECT l.id FROM lkq.line l
                WHERE f.behind > 0 AND l.queue = t.queue AND l.key = u.key
                ORDER BY l.queue DESC, l.key DESC, l.id DESC LIMIT 1
            )) AS last_id
            FROM lkq.items f WHERE u.of_key = 1 AND f.queue = t.queue AND f.key = u.key OFFSET 0
        ) h ON true
    ), live AS MATERIALIZED (
        SELECT * FROM (
            SELECT f.*, max(f.last_id_) OVER (PARTITION BY f.key) AS last_id,
                max(f.state_) OVER (PARTITION BY f.key) AS state
            FROM found f
        ) l WHERE l.last_id IS NOT NULL
    ), new AS MATERIALIZED (
        -- The ids of a key are all given anew, or none: they are in the order of the items.
        SELECT l.*, CASE WHEN l.first_id > l.last_id THEN l.id ELSE nextval('lkq.ids') END AS new_id
        FROM (SELECT * FROM live ORDER BY nth) l
    ), added AS (
        INSERT INTO lkq.line
        (id, queue, key, priority, put_at, deadline, not_before, kind, value)
        SELECT w.new_id, t.queue, w.key, coalesce(w.priority, 0), p_now, p_now + w.deadline,
            CASE WHEN w.due > p_now THEN w.due END, w.kind, w.value
        FROM new w
    ), counted AS (
        UPDATE lkq.items i SET behind = i.behind + w.many FROM new w
        WHERE w.of_key = 1 AND i.ctid = w.at
    )
    SELECT coalesce(array_agg(w.nth::int), '{}'), array_agg(w.new_id),
        count(*) FILTER (WHERE w.state = -1)
    INTO numbers, ids, held_ FROM new w;
    t.held := t.held + held_;
    t.in_line := t.in_line + cardinality(numbers) - held_;
END $$;

-- The ids of the results that stand for keys, which are not put again for so many seconds: of each key
-- that of the value that was completed last, or null.
CREATE FUNCTION lkq.unique_results_1(p_queue text, p_now float8, p_keys text[], p_uniques float8[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT (
            SELECT d.id FROM lkq.done d
            WHERE d.queue || '' || '' = p_queue AND d.key = u.key AND d.outcome = 0
                AND d.ended_at >= p_now - u.unique_for - 1 AND d.ended_at + u.unique_for >= p_now
                AND d.due > p_now
            ORDER BY d.queue || '' || '' DESC, d.key DESC, d.outcome DESC, d.ended_at DESC,
                d.id DESC LIMIT 1
        ) FROM unnest(p_keys, p_uniques) u (key, unique_for)
    );
END $$;

-- Put an item whose key is live. Returns the id of the value that has it now, what was done as a digit
-- (1 updated, 2 buffered, 3 appended, 4 skipped), and what that adds to the tally; no id if the key is not
-- live. A key that was put or leased after a look that found it free makes the call begin anew. With
-- `p_keep`, a value that is appended has the id `p_id`, and the place in the line that goes with it.
CREATE FUNCTION lkq.put_on_live_1(
    p_queue text, p_now float8, p_key text, p_policy text, p_value bytea, p_priority bigint,
    p_kind text, p_deadline float8, p_due float8, p_id bigint, p_keep boolean, p_place bigint,
    OUT id bigint, OUT outcome int, OUT available int, OUT scheduled int, OUT in_line int,
    OUT held int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r lkq.live_1 := lkq.live_1(p_queue, p_key);
    until float8 := CASE WHEN p_due > p_now THEN p_due END;
    replaces_ boolean := false;
    last record;
    buffered record;
BEGIN
    id := r.id;
    outcome := 1;
    available := 0;
    scheduled := 0;
    in_line := 0;
    held := 0;
    IF r.id IS NULL THEN
        RETURN;
    END IF;
    IF p_policy = 'only_new' OR p_policy = 'reject' AND r.state = 2 THEN
        RAISE EXCEPTION 'key % was put or leased by another transaction', p_key
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF r.behind > 0 THEN
        SELECT l.id, l.priority, l.replaces INTO last FROM lkq.line l
        WHERE l.queue = p_queue AND l.key = p_key
        ORDER BY l.queue DESC, l.key DESC, l.id DESC LIMIT 1;
        id := last.id;
    END IF;
    IF p_policy = 'skip' THEN
        outcome := 4;
        RETURN;
    END IF;
    IF p_policy = 'append' OR r.behind = 0 AND (r.state = -1 OR r.state = 2 AND p_policy = 'buffer') THEN
        -- A new value in the line: a call that has waited for the row of the head may have taken its id
        -- before the ids that are there now.
        IF p_id < greatest(id, r.id) THEN
            IF p_keep THEN
                buffered := lkq.buffered_1(p_queue, p_key, r);
                IF buffered.id > p_id THEN
                    UPDATE lkq.line l SET replaces = false
                    WHERE l.queue = p_queue AND l.key = p_key AND l.id = buffered.id;
                END IF;
                r.line_from := least(coalesce(r.line_from, r.id), p_id - 1);
            ELSE
                p_id := nextval('lkq.ids');
            END IF;
        END IF;
        id := p_id;
        IF p_policy = 'append' OR r.state = -1 THEN
            outcome := 3;
            p_priority := coalesce(p_priority, 0);
        ELSE
            outcome := 2;
            replaces_ := true;
            IF p_priority <> r.priority THEN
                r.place := p_place;
            END IF;
            p_priority := coalesce(p_priority, r.priority);
            until := CASE WHEN p_due IS NULL THEN r.not_before ELSE until END;
        END IF;
        INSERT INTO lkq.line
        (id, queue, key, priority, put_at, deadline, not_before, replaces, kind, value)
        VALUES (p_id, p_queue, p_key, p_priority, p_now, p_deadline, until, replaces_, p_kind,
            p_value);
        UPDATE lkq.items SET behind = r.behind + 1, line_from = r.line_from, place = r.place
        WHERE queue = p_queue AND key = p_key;
        IF r.state = -1 THEN
            held := 1;
        ELSE
            in_line := 1;
        END IF;
    ELSIF r.behind > 0 THEN
        -- The last of the line is what is handed out last: the newest value belongs there.
        UPDATE lkq.line l SET value = p_value, kind = p_kind, deadline = p_deadline,
            priority = coalesce(p_priority, l.priority),
            not_before = CASE WHEN p_due IS NULL THEN l.not_before ELSE until END
        WHERE l.queue = p_queue AND l.key = p_key AND l.id = last.id;
        IF last.replaces AND p_priority <> last.priority THEN
            UPDATE lkq.items SET place = p_place WHERE queue = p_queue AND key = p_key;
        END IF;
    ELSIF r.state = 2 THEN
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
    END IF;
END $$;

-- How many values wait in a queue: what `max_items` limits.
CREATE FUNCTION lkq.waiting_1(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(available + in_line + scheduled + held), 0)
        FROM lkq.tallies WHERE queue = p_queue
    );
END $$;

-- Why a put must not happen: keys in flight, keys that are there, or a full queue; null if it may.
CREATE FUNCTION lkq.refusal_1(
    p_queue text, p_keys text[], p_policy text, p_most bigint, p_unique float8, p_now float8,
    t lkq.tallies, p_hold boolean DEFAULT true
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    need bigint;
    leased text[];
    present text[];
BEGIN
    IF p_policy NOT IN ('reject', 'only_new') AND p_most = 0 THEN
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
        count(*) FILTER (WHERE i.key IS NULL OR i.behind = 0
            AND (i.state = 2 AND p_policy = 'buffer' OR i.state = -1 AND p_policy <> 'skip')),
        array_agg(u.key ORDER BY u.n) FILTER (WHERE i.state = 2),
        array_agg(u.key ORDER BY CASE WHEN i.key IS NULL THEN u.again ELSE u.n END)
            FILTER (WHERE i.key IS NOT NULL OR u.again IS NOT NULL)
    INTO need, leased, present
    FROM (
        SELECT k.key, min(k.n) AS n, (array_agg(k.n ORDER BY k.n))[2] AS again
        FROM unnest(p_keys) WITH ORDINALITY k (key, n) GROUP BY k.key
    ) u
    LEFT JOIN LATERAL (
        SELECT i.key, i.state, i.behind FROM lkq.items i
        WHERE i.queue = p_queue AND i.key = u.key OFFSET 0
    ) i ON true;
    IF p_policy = 'reject' AND leased IS NOT NULL THEN
        RETURN jsonb_build_object('in_flight', leased);
    END IF;
    IF p_policy = 'only_new' AND present IS NOT NULL THEN
        RETURN jsonb_build_object('present', present);
    END IF;
    IF p_policy = 'append' THEN
        need := cardinality(p_keys);
    ELSIF p_unique > 0 THEN
        need := need - (
            SELECT count(DISTINCT u.key) FROM unnest(p_keys, lkq.unique_results_1(p_queue, p_now,
                p_keys, array_fill(p_unique, ARRAY[cardinality(p_keys)]))) u (key, result)
            WHERE u.result IS NOT NULL AND NOT EXISTS (
                SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key = u.key
            )
        );
    END IF;
    IF p_most > 0 AND need > 0 AND lkq.waiting_1(p_queue) + t.available + t.in_line + t.scheduled
        + t.held + need > p_most
    THEN
        RETURN jsonb_build_object('full', p_most);
    END IF;
    RETURN NULL;
END $$;
