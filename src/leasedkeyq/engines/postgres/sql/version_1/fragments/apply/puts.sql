-- Puts, one of which may be refused: that is alone in its run.
from_ := (run->>'from')::int;
to_ := (run->>'to')::int;
refused := NULL;
IF run ? 'policy' THEN
    refused := lkq.refusal_1(
        q, p_keys[from_:to_], run->>'policy', (run->>'max_items')::bigint, t
    );
END IF;
IF refused IS NULL THEN
    one := lkq.put_items_1(t, now_, p_keys[from_:to_], p_policies[from_:to_], p_values[from_:to_],
        p_priorities[from_:to_], p_kinds[from_:to_], p_deadlines[from_:to_],
        ARRAY(SELECT now_ + d.delay FROM unnest(p_delays[from_:to_]) d (delay)), NULL);
    t := one.t;
    said := said || jsonb_build_array(first, 'ids', one.ids);
    hot := true;
ELSE
    said := said || jsonb_build_array(first, 'no', refused);
END IF;
