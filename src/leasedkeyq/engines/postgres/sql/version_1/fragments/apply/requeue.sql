-- Put a buried item in its queue again, under the rules of a put. Its row is locked first: of two calls
-- that requeue it, the second finds nothing. It stays buried if the put is refused. It begins anew, with
-- another id and without a deadline, which is not kept while an item is buried.
SELECT b.key, b.priority, b.kind, b.value INTO was
FROM lkq.buried b WHERE b.queue = q AND b.id = (run->>'id')::bigint FOR UPDATE;
IF NOT FOUND THEN
    said := said || jsonb_build_array(first, 'is', false);
ELSE
    refused := lkq.refusal_1(
        q, ARRAY[was.key::text], run->>'policy', (run->>'max_items')::bigint, t
    );
    IF refused IS NOT NULL THEN
        said := said || jsonb_build_array(first, 'no', refused);
    ELSE
        one := lkq.put_items_1(t, now_, ARRAY[was.key::text], ARRAY[run->>'policy'],
            ARRAY[was.value], ARRAY[was.priority], ARRAY[was.kind::text], NULL, NULL, NULL);
        t := one.t;
        DELETE FROM lkq.buried WHERE queue = q AND id = (run->>'id')::bigint;
        t.buried := t.buried - 1;
        said := said || jsonb_build_array(first, 'is', true);
        hot := true;
    END IF;
END IF;
