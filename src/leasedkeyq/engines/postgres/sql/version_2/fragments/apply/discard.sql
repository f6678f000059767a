-- Remove a buried item or, if none has that id, a result that is still shown.
one := lkq.unbury_1(t, (run->>'id')::bigint, now_);
t := one.t;
IF NOT one.gone THEN
    DELETE FROM lkq.done WHERE queue = q AND id = (run->>'id')::bigint AND due > now_
    RETURNING outcome INTO many;
    one.gone := FOUND;
    IF FOUND THEN
        t := lkq.step_done_1(t, many, -1);
    END IF;
END IF;
hot := hot OR one.gone;
said := said || jsonb_build_array(first, 'is', one.gone);
