-- Take an item out of its queue, and keep it apart: the oldest ones go if there are too many. With "hold",
-- the row of the item stays, and holds the key.
r.history := lkq.remember_1(r.history, r.attempt, now_, 'buried', run->>'error', p_history);
INSERT INTO lkq.buried (id, number, queue, key, priority, attempt, put_at, buried_at, error, history,
    kind, value, holds)
SELECT id, nextval('lkq.burials'), queue, key, priority, attempt, put_at, now_, run->>'error',
    r.history, kind, value, run->>'hold' = 'true'
FROM lkq.items WHERE queue = q AND key = k;
said := said || jsonb_build_array(first, 'is', r.id);
t.in_flight := t.in_flight - 1;
t.buried := t.buried + 1;
IF run->>'hold' = 'true' THEN
    UPDATE lkq.items SET state = -1, due = NULL, not_before = NULL, token = NULL
    WHERE queue = q AND key = k;
    IF r.behind > 0 THEN
        -- What a buffered value was to replace is kept: it waits for its turn, too.
        one := lkq.buffered_1(q, k, r);
        UPDATE lkq.line SET replaces = false WHERE queue = q AND key = k AND id = one.id;
        t.in_line := t.in_line - r.behind;
        t.held := t.held + r.behind;
    END IF;
ELSE
    --> include end_item
END IF;
SELECT sum(buried) INTO size FROM lkq.tallies WHERE queue = q;
WHILE coalesce(size, 0) + t.buried > p_buried LOOP
    SELECT id, key INTO was FROM lkq.buried WHERE queue || '' = q
    ORDER BY queue || '', number LIMIT 1
    FOR UPDATE SKIP LOCKED;
    EXIT WHEN NOT FOUND;
    one := lkq.unbury_1(t, was.id, now_);
    t := one.t;
    dropped := dropped || jsonb_build_array(q, was.key);
END LOOP;
hot := true;
