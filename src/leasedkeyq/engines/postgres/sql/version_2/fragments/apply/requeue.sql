-- Put a buried item in its queue again, under the rules of a put. Its row is locked first: of two calls
-- that requeue it, the second finds nothing. It stays buried if the put is refused. It begins anew, with
-- another id and without a deadline, which is not kept while an item is buried. One that holds its key is
-- the head again, with its id; the row of the key, where it still is, is locked before that of the item.
SELECT b.key INTO k FROM lkq.buried b WHERE b.queue = q AND b.id = (run->>'id')::bigint AND b.holds;
r := lkq.live_1(q, k);
SELECT b.key, b.priority, b.kind, b.value, b.holds INTO was
FROM lkq.buried b WHERE b.queue = q AND b.id = (run->>'id')::bigint FOR UPDATE;
IF NOT FOUND THEN
    said := said || jsonb_build_array(first, 'is', false);
ELSE
    refused := lkq.refusal_1(q, ARRAY[was.key::text], CASE WHEN was.holds THEN 'append'
        ELSE run->>'policy' END, (run->>'max_items')::bigint, 0, now_, t);
    IF refused IS NOT NULL THEN
        said := said || jsonb_build_array(first, 'no', refused);
    ELSE
        IF was.holds THEN
            UPDATE lkq.items SET state = 0, place = nextval('lkq.places'), attempt = 0,
                history = NULL, deadline = NULL, put_at = now_
            WHERE queue = q AND key = k;
            t.held := t.held - r.behind;
            t.in_line := t.in_line + r.behind;
            t.available := t.available + 1;
        ELSE
            one := lkq.put_items_1(t, now_, ARRAY[was.key::text], ARRAY[run->>'policy'],
                ARRAY[was.value], ARRAY[was.priority], ARRAY[was.kind::text], NULL, NULL, NULL,
                NULL);
            t := one.t;
        END IF;
        DELETE FROM lkq.buried WHERE queue = q AND id = (run->>'id')::bigint;
        t.buried := t.buried - 1;
        said := said || jsonb_build_array(first, 'is', true);
        hot := true;
    END IF;
END IF;
