-- Where to begin to look in a queue.
CREATE FUNCTION lkq.floor_1(q text, now_ float8) RETURNS lkq.floors
LANGUAGE plpgsql STABLE AS $$
DECLARE
    floor_ lkq.floors;
BEGIN
    SELECT f.place, f.due, f.counted, f.queue INTO floor_ FROM
        --> include floor
    ;
    RETURN floor_;
END $$;

-- Find out where to begin to look in queues in which claims have become slow. No other
-- call changes them meanwhile; if others are at it for long, it is left for the next time. Returns how many
-- seconds it took to get there.
CREATE FUNCTION lkq.raise_1(p_queues text[], p_now float8, p_history int) RETURNS float8
LANGUAGE plpgsql
--> include settings
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    now_ float8 := lkq.now_1(p_now);
    floor_ lkq.floors;
    q text;
    first bigint;
    began timestamptz;
    took float8 := 0;
BEGIN
    FOREACH q IN ARRAY p_queues LOOP
        PERFORM pg_advisory_xact_lock(lkq.lock_1('queue', q));
        began := clock_timestamp();
        floor_ := lkq.floor_1(q, now_);
        IF lkq.advance_1(q, now_, p_history, floor_.due) THEN
            PERFORM lkq.tell_1(ARRAY[q]);
        END IF;
        SELECT place INTO first FROM lkq.items
        WHERE queue = q AND state = 0 AND priority = 0 AND place >= floor_.place
        ORDER BY place LIMIT 1;
        IF first IS NULL THEN
            -- Whatever is put from now on gets a higher one.
            first := nextval('lkq.places');
        END IF;
        INSERT INTO lkq.floors (queue, place, due) VALUES (q, first, now_)
        ON CONFLICT (queue) DO UPDATE SET place = excluded.place, due = excluded.due;
        took := took + extract(epoch FROM clock_timestamp() - began);
    END LOOP;
    RETURN took;
END $$;
