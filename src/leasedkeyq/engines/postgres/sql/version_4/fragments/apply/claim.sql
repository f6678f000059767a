-- A claim of queues, one after the other, maybe of a key, of kinds, or with caps; or the same claim
-- of one queue many times, of up to `each` items.
total := (run->>'limit')::int;
each_ := coalesce((run->>'each')::int, total);
kinds := CASE WHEN run ? 'kinds' THEN ARRAY(SELECT jsonb_array_elements_text(run->'kinds')) END;
FOR place IN SELECT e FROM jsonb_array_elements(run->'queues') e LOOP
    q := place->>0;
    room := least((place->>1)::int, total);
    --> include enter_queue
    IF room > 0 THEN
        IF jsonb_typeof(place->3) = 'object' AND lkq.hurried_1(q) THEN
            -- A deadline may bring an item forward.
            tids := ARRAY(SELECT u.at FROM lkq.urgent_1(now_, jsonb_strip_nulls(
                jsonb_build_object(
                    'limit', room, 'kinds', run->'kinds', 'in_flight', t.in_flight,
                    'queues', jsonb_build_array((place->3) || jsonb_build_object(
                        'queue', q, 'most', room, 'caps', run->'caps'->q
                    ))
                )
            )) u);
        ELSIF run->'caps'->q IS NOT NULL THEN
            tids := lkq.capped_1(now_, q, room, run->>'key', kinds, run->'caps'->q, t.in_flight,
                false, NULL, NULL, NULL);
        ELSIF run ? 'key' THEN
            tids := ARRAY(
                SELECT ctid FROM lkq.items
                WHERE queue = q AND key = run->>'key' AND state + 0 = 0
                    AND (kinds IS NULL OR kind = ANY (kinds))
                FOR UPDATE SKIP LOCKED
            );
        ELSE
            --> include first_ready
        END IF;
        --> include lease_chosen: (place->>2)::float8 AS lease, coalesce(run->>'tail', '') AS tail
        total := total - many;
        hot := hot OR many > 0;
    END IF;
    --> include leave_queue
END LOOP;
