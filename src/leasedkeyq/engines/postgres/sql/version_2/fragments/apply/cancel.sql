-- Remove a key, or one value of it, or all that is behind its head. A buried item that holds the key is
-- none of its values, but lets it go with the whole key.
number := (run->>'id')::bigint;
held := coalesce(r.state = -1, false);
everything := number IS NULL AND run->>'only_line' IS DISTINCT FROM 'true';
the_item := r.id IS NOT NULL AND NOT held AND (everything OR coalesce(number = r.id, false));
until := now_ + (run->>'keep')::float8;
size := 0;
IF r.behind > 0 AND (everything OR NOT the_item) THEN
    WITH gone AS (
        DELETE FROM lkq.line l WHERE l.queue = q AND l.key = k
            AND l.id >= coalesce(number, coalesce(r.line_from, r.id))
            AND l.id <= coalesce(number, 9223372036854775807)
        RETURNING l.id, l.queue, l.key, l.priority, l.put_at, l.kind
    ), ended AS (
        SELECT *, 0 AS attempt, until AS due, (run->>'outcome')::int AS outcome,
            NULL::jsonb AS history, p_results[(run->>'from')::int] AS value
        FROM gone WHERE until > now_
    ), kept AS (
        --> include insert_results
    )
    SELECT count(*) INTO size FROM gone;
    r.behind := r.behind - size;
    IF held THEN
        t.held := t.held - size;
    ELSE
        t.in_line := t.in_line - size;
    END IF;
END IF;
IF the_item AND until > now_ THEN
    WITH ended AS (
        SELECT i.id, i.queue, i.key, i.priority, i.attempt, i.put_at, until AS due,
            (run->>'outcome')::int AS outcome, i.history, i.kind,
            p_results[(run->>'from')::int] AS value
        FROM lkq.items i WHERE i.queue = q AND i.key = k
    )
    --> include insert_results
    ;
END IF;
IF the_item THEN
    t := lkq.step_1(t, r.state, -1);
    --> include end_item
ELSIF held AND everything THEN
    UPDATE lkq.buried SET holds = false WHERE queue = q AND id = r.id;
    DELETE FROM lkq.items WHERE queue = q AND key = k;
    hot := true;
ELSIF size > 0 THEN
    UPDATE lkq.items SET behind = r.behind WHERE queue = q AND key = k;
END IF;
size := size + the_item::int;
IF until > now_ THEN
    t := lkq.step_done_1(t, (run->>'outcome')::int, size);
END IF;
said := said || jsonb_build_array(first, 'is', size);
hot := hot OR size > 0;
