-- Let a lease last from now on for so long, which may be shorter than it would have lasted.
until := now_ + (run->>'lease')::float8;
IF run ? 'progress' THEN
    IF jsonb_typeof(r.history->-1) = 'string' THEN
        r.history := r.history - (-1);
    END IF;
    UPDATE lkq.items
    SET due = until, history = coalesce(r.history, '[]') || jsonb_build_array(run->'progress')
    WHERE queue = q AND key = k;
ELSE
    UPDATE lkq.items SET due = until WHERE queue = q AND key = k;
END IF;
said := said || jsonb_build_array(first, 'is', until);
-- A waiting `get` sleeps until the next item comes due: it has to be woken if that is earlier now.
hot := hot OR until < coalesce(r.due, 'infinity');
