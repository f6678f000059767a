-- Remove a buried item or, if none has that id, a result that is still shown.
DELETE FROM lkq.buried WHERE queue = q AND id = (run->>'id')::bigint;
t.buried := t.buried - FOUND::int;
IF NOT FOUND THEN
    DELETE FROM lkq.done WHERE queue = q AND id = (run->>'id')::bigint AND due > now_
    RETURNING outcome INTO many;
    IF FOUND THEN
        t := lkq.step_done_1(t, many, -1);
    END IF;
END IF;
hot := hot OR FOUND;
said := said || jsonb_build_array(first, 'is', FOUND);
