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
            array_agg(g.kind)::text[] AS kinds, array_agg(g.due) AS dues
        INTO taken FROM (SELECT * FROM gone ORDER BY gone.number) g;
        CONTINUE WHEN taken.number IS NULL; -- another call was faster
        -- Not each time: the old versions of this row are in the way, too.
        INSERT INTO lkq.inbox_floors AS f (gate, xact, number)
        SELECT gate_, oldest, taken.number WHERE taken.number >= 1000
        ON CONFLICT (gate) DO UPDATE SET xact = excluded.xact, number = excluded.number
        WHERE excluded.number >= f.number + 1000 OR f.xact > excluded.xact;
        one := lkq.put_items_1(lkq.no_change_1(taken.queue), lkq.now_1(p_now), taken.keys,
            taken.policies, taken.values, taken.priorities, taken.kinds, NULL, taken.dues, taken.ids);
        PERFORM lkq.tally_1(one.t);
        received := received || taken.queue;
    END LOOP;
    RETURN received;
END $$;

-- Put items in the transaction of the caller, all of them or none. They come to the queue when that
-- has committed. Refused is what can be seen now to be against the policy; it is too late for that
-- later, so a key that is leased when they come has the value beside it. Returns the ids that the
-- items get whose keys are not live then, or why they are refused.
CREATE FUNCTION lkq.post_1(
    p_queue text, p_keys text[], p_values bytea[], p_policy text, p_priority bigint,
    p_delay float8, p_most bigint, p_kind text
) RETURNS jsonb
LANGUAGE plpgsql
--> include settings
AS $$
DECLARE
    gate_ bigint := lkq.lock_1('queue', p_queue);
    expected lkq.tallies := lkq.no_change_1(p_queue);
    refused jsonb;
    ids jsonb;
BEGIN
    IF p_most > 0 THEN
        SELECT count(DISTINCT b.key) INTO expected.available FROM lkq.inbox b
        WHERE b.gate = gate_ AND b.key <> ALL (p_keys) AND NOT EXISTS (
            SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.key = b.key
        );
    END IF;
    refused := lkq.refusal_1(p_queue, p_keys, p_policy, p_most, expected, false);
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
