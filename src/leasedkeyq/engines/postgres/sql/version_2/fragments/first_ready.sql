-- The first available items of the queue `q`. They are locked, and others do not wait for them.
IF floor_.place > 0 THEN
    tids := ARRAY(SELECT lkq.ready_1(q, room, floor_.place, kinds));
ELSE
    tids := ARRAY(
        SELECT ctid FROM lkq.items WHERE queue = q AND state = 0
            AND (kinds IS NULL OR kind = ANY (kinds))
        ORDER BY priority DESC, place LIMIT room FOR UPDATE SKIP LOCKED
    );
END IF;
