-- Take an item out of its queue, and keep it apart: the oldest ones go if there are too many.
r.history := lkq.remember_1(r.history, r.attempt, now_, 'buried', run->>'error', p_history);
INSERT INTO lkq.buried (id, number, queue, key, priority, attempt, put_at, buried_at, error, history,
    kind, value)
SELECT id, nextval('lkq.burials'), queue, key, priority, attempt, put_at, now_, run->>'error',
    r.history, kind, value
FROM lkq.items WHERE queue = q AND key = k;
t.in_flight := t.in_flight - 1;
t.buried := t.buried + 1;
SELECT sum(buried) INTO size FROM lkq.tallies WHERE queue = q;
WHILE coalesce(size, 0) + t.buried > p_buried LOOP
    DELETE FROM lkq.buried WHERE ctid = (
        SELECT ctid FROM lkq.buried WHERE queue || '' = q
        ORDER BY queue || '', number LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) RETURNING jsonb_build_array(queue, key) INTO refused;
    EXIT WHEN NOT FOUND;
    dropped := dropped || refused;
    t.buried := t.buried - 1;
END LOOP;
said := said || jsonb_build_array(first, 'is', r.id);
--> include end_item
hot := true;
