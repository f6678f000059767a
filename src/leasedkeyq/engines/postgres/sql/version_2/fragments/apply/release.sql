-- Give an item back before it is done. With "undo" it is as if it had not been leased: its
-- claim reached no worker.
until := CASE WHEN (run->>'delay')::float8 <> 0 THEN now_ + (run->>'delay')::float8 END;
t.in_flight := t.in_flight - 1;
IF run->>'undo' = 'true' THEN
    r.attempt := r.attempt - 1;
    r.token := NULL;
    r.due := NULL;
    r.state := 0;
    IF r.behind > 0 THEN
        one := lkq.buffered_1(q, k, r);
        IF one.id IS NOT NULL THEN
            r.next_id := one.id;
            r.priority := one.priority;
            r.not_before := one.not_before;
        END IF;
    END IF;
    until := greatest(until, r.not_before);
    r.not_before := NULL;
    IF until > now_ THEN
        r := lkq.place_1(r, until, now_, false);
    ELSIF r.priority = 0 AND r.place >= 0 AND r.place < floor_.place THEN
        UPDATE lkq.floors SET place = r.place WHERE queue = q AND place > r.place;
    END IF;
ELSE
    r.history := lkq.remember_1(r.history, r.attempt, now_, 'released', run->>'error', p_history);
    r := lkq.return_1(q, k, r, until, run->>'front' = 'true', now_);
END IF;
t.in_line := t.in_line - (r.next_id IS NOT NULL)::int;
t := lkq.step_1(t, r.state, 1);
PERFORM lkq.write_1(q, k, r);
hot := true;
