-- Acks of different keys, all with results that are kept or all without.
keys := ARRAY(SELECT jsonb_array_elements_text(run->'keys'));
tokens := ARRAY(SELECT jsonb_array_elements_text(run->'tokens'));
keeps := NULL;
IF run ? 'keeps' THEN
    keeps := ARRAY(SELECT e::float8 FROM jsonb_array_elements_text(run->'keeps') e);
    results := p_results[(run->>'from')::int:(run->>'to')::int];
    WITH
    --> include acked_items
    , ended AS (
        SELECT *, now_ + keeps[n] AS due, (run->>'outcome')::int AS outcome, results[n] AS value
        FROM gone
    ), kept AS (
        --> include insert_results
    )
    SELECT array_agg(g.n) INTO numbers FROM gone g;
ELSE
    WITH
    --> include acked_items
    SELECT array_agg(g.n) INTO numbers FROM gone g;
END IF;
many := coalesce(cardinality(numbers), 0);
IF many < cardinality(keys) THEN
    one := lkq.ack_rest_1(
        t, now_, keys, tokens, numbers, keeps, results, (run->>'outcome')::int
    );
    t := one.t;
    many := many + one.ended;
    said := said || jsonb_build_array(first, 'refused', one.refused);
END IF;
t.in_flight := t.in_flight - many;
IF keeps IS NOT NULL THEN
    t := lkq.step_done_1(t, (run->>'outcome')::int, many);
END IF;
hot := hot OR many > 0;
