-- Where to begin to look in the inbox of a queue.
CREATE FUNCTION lkq.inbox_floor_1(p_gate bigint) RETURNS xid8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN
        --> include inbox_floor
    ;
END $$;

-- Whether there is something in the inbox of queues, which are named by their locks.
CREATE FUNCTION lkq.inbox_has_items_1(p_gates bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
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
CREATE FUNCTION lkq.empty_inbox_1(p_gates bigint[], p_now float8) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    gate_ bigint;
    held bigint[] := '{}';
    taken record;
    one record;
    received text[] := '{}';
    oldest xid8;
BEGIN
    -- First all these locks, then items: a call that has locked an item must not wait for another call
    -- that may want that item.
    FOREACH gate_ IN ARRAY p_gates LOOP
        IF lkq.inbox_has_items_1(ARRAY[gate_]) THEN
            PERFORM pg_advisory_xact_lock(lkq.lock_1('inbox', gate_::text));
            held := held || gate_;
        END IF;
    END LOOP;
    FOREACH gate_ IN ARRAY held LOOP
        -- All transactions before this one have ended, and the next statement sees what they did.
        SELECT pg_snapshot_xmin(pg_current_snapshot()) INTO oldest;
        WITH gone AS (
            DELETE FROM lkq.inbox b WHERE b.gate = gate_ AND b.xact >= lkq.inbox_floor_1(gate_)
            RETURNING b.*
        )
        SELECT max(g.number) AS number, max(g.queue)::text AS queue, array_agg(g.id) AS ids,
            array_agg(g.key)::text[] AS keys, array_agg(g.policy) AS policies,
            array_agg(g.value) AS values, array_agg(g.priority) AS priorities,
            array_agg(g.kind)::text[] AS kinds, array_agg(g.due) AS dues,
            array_agg(g.unique_for) AS uniques
        INTO taken FROM (SELECT * FROM gone ORDER BY gone.number) g;
        CONTINUE WHEN taken.number IS NULL; -- another call was faster
        -- Not each time: the old versions of this row are in the way, too.
        INSERT INTO lkq.inbox_floors AS f (gate, xact, number)
        SELECT gate_, oldest, taken.number WHERE taken.number >= 1000
        ON CONFLICT (gate) DO UPDATE SET xact = excluded.xact, number = excluded.number
        WHERE excluded.number >= f.number + 1000 OR f.xact > excluded.xact;
        one := lkq.put_items_1(lkq.no_change_1(taken.queue), lkq.now_1(p_now), taken.keys,
            taken.policies, taken.values, taken.priorities, taken.kinds, NULL, taken.dues,
            taken.uniques, taken.ids);
        PERFORM lkq.tally_1(one.t);
        received := received || taken.queue;
    END LOOP;
    RETURN received;
END $$;

-- Put items in the transaction of the caller, all of them or none. They come to the queue when that
-- has committed, in the order in which they were put. Refused is what can be seen now to be against the
-- policy; it is too late for that later: a key that is leased when they come has the value behind it, and
-- one that has come to be there has it at the end of its line. What is skipped now is not put; a key that
-- is there only when they come is skipped then. Returns the ids and what is done with each, as
-- `put_items_1` does, as of now, or why they are refused. A value that is added or appended keeps its id.
CREATE FUNCTION lkq.post_1(
    p_queue text, p_keys text[], p_values bytea[], p_policy text, p_priority bigint,
    p_delay float8, p_most bigint, p_kind text, p_unique float8
) RETURNS jsonb
LANGUAGE plpgsql
--> include settings
AS $$
DECLARE
    gate_ bigint := lkq.lock_1('queue', p_queue);
    now_ float8 := extract(epoch FROM clock_timestamp())::float8;
    expected lkq.tallies := lkq.no_change_1(p_queue);
    refused jsonb;
    said jsonb;
BEGIN
    IF p_most > 0 THEN
        SELECT count(*) FILTER (WHERE b.policy = 'append') + count(DISTINCT b.key) FILTER (
            WHERE b.policy <> 'append' AND b.key <> ALL (p_keys) AND NOT EXISTS (
                SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key = b.key
            )
        ) INTO expected.available FROM lkq.inbox b WHERE b.gate = gate_;
    END IF;
    refused := lkq.refusal_1(p_queue, p_keys, p_policy, p_most, p_unique, now_, expected, false);
    IF refused IS NULL AND p_policy = 'only_new' THEN
        SELECT jsonb_build_object('present', jsonb_agg(u.key ORDER BY u.n)) INTO refused
        FROM unnest(p_keys) WITH ORDINALITY u (key, n)
        WHERE EXISTS (SELECT FROM lkq.inbox b WHERE b.gate + 0 = gate_ AND b.key = u.key)
        HAVING count(*) > 0;
    END IF;
    IF refused IS NOT NULL THEN
        RETURN jsonb_build_array(0, 'no', refused);
    END IF;
    WITH found AS MATERIALIZED (
        SELECT u.n, u.key, u.value, coalesce(w.id, i.last_id, u.result) AS id,
            -- Whether a value of its key waits that this one may replace.
            w.id IS NOT NULL OR u.again OR i.behind > 0 OR i.state IN (0, 1) AS waits,
            w.id IS NOT NULL OR u.again OR i.id IS NOT NULL AS present, i.state
        FROM (
            SELECT k.n, k.key, k.value, k.result,
                row_number() OVER (PARTITION BY k.key ORDER BY k.n) > 1 AS again
            FROM unnest(p_keys, p_values, CASE WHEN p_unique > 0 THEN lkq.unique_results_1(p_queue,
                now_, p_keys, array_fill(p_unique, ARRAY[cardinality(p_keys)])) END)
                WITH ORDINALITY k (key, value, result, n)
        ) u
        LEFT JOIN LATERAL (
            SELECT f.id, f.state, f.behind, coalesce((
                SELECT l.id FROM lkq.line l
                WHERE f.behind > 0 AND l.queue = p_queue AND l.key = u.key
                ORDER BY l.queue DESC, l.key DESC, l.id DESC LIMIT 1
            ), f.id) AS last_id
            FROM lkq.items f WHERE f.queue = p_queue AND f.key = u.key OFFSET 0
        ) i ON true
        LEFT JOIN LATERAL (
            SELECT max(b.id) AS id FROM lkq.inbox b WHERE b.gate + 0 = gate_ AND b.key = u.key
        ) w ON true
    ), decided AS MATERIALIZED (
        SELECT f.n, f.key, f.value, f.id, CASE
            WHEN p_policy = 'skip' AND (f.present OR f.id IS NOT NULL) THEN 4
            WHEN NOT f.present THEN 0
            WHEN p_policy = 'append' THEN 3
            WHEN f.waits THEN 1
            WHEN f.state = -1 THEN 3
            WHEN p_policy = 'buffer' THEN 2
            ELSE 1
        END AS outcome
        FROM found f
    ), numbered AS MATERIALIZED (
        SELECT d.*, CASE WHEN d.outcome < 4 THEN nextval('lkq.ids') END AS new_id
        FROM (SELECT * FROM decided ORDER BY n) d
    ), new AS (
        INSERT INTO lkq.inbox
        (gate, id, queue, key, kind, policy, priority, due, unique_for, value)
        SELECT gate_, m.new_id, p_queue, m.key, p_kind,
            CASE p_policy WHEN 'reject' THEN 'buffer' WHEN 'only_new' THEN 'append' ELSE p_policy END,
            p_priority, now_ + p_delay, p_unique, m.value
        FROM numbered m WHERE m.outcome < 4 ORDER BY m.n
    )
    SELECT jsonb_build_array(
        jsonb_agg(coalesce(CASE WHEN m.outcome IN (1, 4) THEN m.id END, m.new_id,
            first_value_) ORDER BY m.n),
        string_agg(m.outcome::text, '' ORDER BY m.n))
    INTO said
    FROM (
        SELECT m.*, min(m.new_id) OVER (PARTITION BY m.key) AS first_value_ FROM numbered m
    ) m;
    PERFORM lkq.tell_1(ARRAY[p_queue]);
    RETURN jsonb_build_array(0, 'placed', said);
END $$;

-- For programs in any language: put an item in the transaction of the caller, as `post_1` does. Returns
-- the id of its value or, if that was skipped, of the newest value of the key. The value is JSON, `delay`
-- is in seconds from now. `if_in_flight` is 'update', 'buffer' or 'reject'; instead of it, `if_present` is
-- 'append', 'update', 'skip' or 'reject'. With 'skip', `unique_for` is for how many seconds after its end
-- a completed result that is kept stands for its key.
CREATE FUNCTION lkq.put(
    queue text, key text, value jsonb, priority bigint DEFAULT NULL, delay float8 DEFAULT NULL,
    if_in_flight text DEFAULT NULL, kind text DEFAULT '', if_present text DEFAULT NULL,
    unique_for float8 DEFAULT 0
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    policy text := CASE if_present WHEN 'update' THEN 'buffer' WHEN 'reject' THEN 'only_new'
        ELSE coalesce(if_present, if_in_flight, 'update') END;
    said jsonb;
BEGIN
    IF queue IS NULL OR queue = '' OR key IS NULL OR key = '' OR value IS NULL
        OR length(queue) > 512 OR length(key) > 512 OR length(kind) > 512
        OR if_in_flight NOT IN ('update', 'buffer', 'reject')
        OR if_present NOT IN ('append', 'update', 'skip', 'reject')
        OR if_in_flight IS NOT NULL AND if_present IS NOT NULL
        OR delay < 0 OR unique_for < 0 OR unique_for > 0 AND policy <> 'skip'
    THEN
        RAISE EXCEPTION 'a put needs a queue, a key, a value and a policy that make sense'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    said := lkq.post_1(queue, ARRAY[key], ARRAY[convert_to(value::text, 'UTF8')], policy,
        priority, delay, 0, coalesce(kind, ''), coalesce(unique_for, 0));
    IF said->2 ? 'present' THEN
        RAISE EXCEPTION 'key % is in the queue already', key USING ERRCODE = 'unique_violation';
    ELSIF said->>1 <> 'placed' THEN
        RAISE EXCEPTION 'key % is in flight', key USING ERRCODE = 'object_in_use';
    END IF;
    RETURN (said->2->0->>0)::bigint;
END $$;
