-- The item `r` of the key `k` in the queue `q` is over: its row goes, or the value that was buffered
-- beside it begins anew in its place.
IF r.next_id IS NULL THEN
    DELETE FROM lkq.items WHERE queue = q AND key = k;
ELSE
    t.buffered := t.buffered - 1;
    r := lkq.follow_1(r, now_);
    t := lkq.step_1(t, r.state, 1);
    PERFORM lkq.write_1(q, k, r);
END IF;
