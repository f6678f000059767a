-- Change a value that waits, where it is: the head, if it is not leased or held, or one of its line. What is null
-- stays.
number := (run->>'id')::bigint;
until := now_ + (run->>'delay')::float8;
the_item := coalesce(number = r.id AND r.state IN (0, 1), false);
IF the_item THEN
    IF (run->>'priority')::bigint <> r.priority THEN
        r.priority := (run->>'priority')::bigint;
        IF r.state = 0 THEN
            r.place := nextval('lkq.places');
        END IF;
    END IF;
    IF r.state = 1 AND until IS NOT NULL OR until > now_ THEN
        t := lkq.step_1(t, r.state, -1);
        r := lkq.place_1(r, until, now_, false);
        t := lkq.step_1(t, r.state, 1);
    END IF;
    UPDATE lkq.items SET state = r.state, priority = r.priority, place = r.place, turn = r.turn, due = r.due,
        kind = coalesce(run->>'kind', kind), value = coalesce(p_results[(run->>'from')::int], value)
    WHERE queue = q AND key = k;
ELSIF r.behind > 0 THEN
    SELECT l.priority, l.replaces INTO was FROM lkq.line l
    WHERE l.queue = q AND l.key = k AND l.id = number;
    the_item := FOUND;
    UPDATE lkq.line l SET priority = coalesce((run->>'priority')::bigint, l.priority),
        not_before = CASE WHEN until IS NULL THEN l.not_before WHEN until > now_ THEN until END,
        kind = coalesce(run->>'kind', l.kind),
        value = coalesce(p_results[(run->>'from')::int], l.value)
    WHERE l.queue = q AND l.key = k AND l.id = number;
    IF the_item AND was.replaces AND (run->>'priority')::bigint <> was.priority THEN
        -- Should the claim of the head be undone, it goes to the back, where a put would move it.
        UPDATE lkq.items SET place = nextval('lkq.places') WHERE queue = q AND key = k;
    END IF;
END IF;
said := said || jsonb_build_array(first, 'is', the_item);
hot := hot OR the_item;
