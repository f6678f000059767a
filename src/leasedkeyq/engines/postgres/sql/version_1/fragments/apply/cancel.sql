-- Remove a key, or one value of it: the item, or what is beside it.
number := (run->>'id')::bigint;
the_item := r.id IS NOT NULL AND (number IS NULL OR number = r.id);
the_next := r.next_id IS NOT NULL AND (number IS NULL OR number = r.next_id);
IF (run->>'keep')::float8 > 0 THEN
    t := lkq.step_done_1(t, (run->>'outcome')::int, lkq.keep_1(
        q, k, now_ + (run->>'keep')::float8, (run->>'outcome')::int,
        p_results[(run->>'from')::int], the_item, the_next));
END IF;
IF the_next THEN
    t.buffered := t.buffered - 1;
    r.next_id := NULL;
END IF;
IF the_item THEN
    t := lkq.step_1(t, r.state, -1);
    --> include end_item
ELSIF the_next THEN
    UPDATE lkq.items SET
        --> include columns/no_next
    WHERE queue = q AND key = k;
END IF;
said := said || jsonb_build_array(first, 'is', the_item OR the_next);
hot := hot OR the_item OR the_next;
