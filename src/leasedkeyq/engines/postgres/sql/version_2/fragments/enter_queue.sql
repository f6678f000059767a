-- Turn to the queue `q`: write the tally of the one before, read where to begin to look, and deal with
-- the items that have come due. The floor is read here and not by `floor_1`: a call would cost more.
IF q IS DISTINCT FROM t.queue THEN
    nothing := lkq.tally_1(t) IS NULL;
    t := lkq.no_change_1(q);
END IF;
hot := false;
SELECT f.place, f.due, f.counted, f.queue INTO floor_ FROM
    --> include floor
;
IF floor_.queue IS NOT NULL AND floor_.due = '-infinity' THEN
    -- The clock was set back: a lease that begins now may expire before the floor.
    UPDATE lkq.floors SET due = '-infinity' WHERE queue = q AND due > now_;
END IF;
IF EXISTS (SELECT FROM lkq.items WHERE queue = q AND due >= floor_.due AND due <= now_) THEN
    hot := lkq.advance_1(q, now_, p_history, floor_.due);
END IF;
