-- Puts, one of which may be refused: that is alone in its run.
from_ := (run->>'from')::int;
to_ := (run->>'to')::int;
refused := NULL;
IF run ? 'policy' THEN
    refused := lkq.refusal_1(q, p_keys[from_:to_], run->>'policy', (run->>'max_items')::bigint,
        (run->>'unique_for')::float8, now_, t);
END IF;
IF refused IS NULL THEN
    one := lkq.put_items_1(t, now_, p_keys[from_:to_], p_policies[from_:to_], p_values[from_:to_],
        p_priorities[from_:to_], p_kinds[from_:to_], p_deadlines[from_:to_],
        ARRAY(SELECT now_ + d.delay FROM unnest(p_delays[from_:to_]) d (delay)),
        p_uniques[from_:to_], NULL);
    t := one.t;
    said := said || jsonb_build_array(first, 'placed', jsonb_build_array(one.ids, one.outcomes));
    hot := hot OR one.outcomes IS NULL OR one.outcomes <> repeat('4', to_ - from_ + 1);
ELSE
    said := said || jsonb_build_array(first, 'no', refused);
END IF;
