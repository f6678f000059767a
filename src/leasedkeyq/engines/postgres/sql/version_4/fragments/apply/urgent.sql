-- A claim of several queues by urgency: they take turns.
nothing := lkq.tally_1(t) IS NULL;
t := NULL;
keys := ARRAY(SELECT e->>'queue' FROM jsonb_array_elements(run->'queues') e);
UPDATE lkq.floors SET due = '-infinity' WHERE queue = ANY (keys) AND due > now_;
changed := changed || lkq.arrive_1(keys, now_, p_history, false);
SELECT array_agg(u.at), array_agg(u.number) INTO tids, numbers FROM lkq.urgent_1(now_, run) u;
RETURN QUERY
WITH chosen AS MATERIALIZED (
    SELECT u.at, nextval('lkq.fences') AS fence, first AS n,
        (run->'queues'->u.number - 1->>'lease')::float8 AS lease, coalesce(run->>'tail', '') AS tail,
        (lkq.floor_1(keys[u.number], now_)).counted
    FROM unnest(tids, numbers) u (at, number)
)
--> include lease_items
FOR one IN SELECT u.number, count(*) AS many FROM unnest(numbers) u (number) GROUP BY 1 LOOP
    q := keys[one.number];
    t := lkq.no_change_1(q);
    t.available := -one.many;
    t.in_flight := one.many;
    PERFORM lkq.tally_1(t);
    hot := true;
    --> include leave_queue
END LOOP;
t := NULL;
