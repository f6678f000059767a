-- Lease the rows `tids` of the queue `q`, which are locked, for the claim with the number `first` and
-- those that follow it, `each_` rows for each. The argument tells the lease time and the end of the tokens.
many := cardinality(tids);
IF many > 0 THEN
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT u.at, nextval('lkq.fences') AS fence, first + (u.nth - 1)::int / each_ AS n,
            --> argument
            , floor_.counted
        FROM unnest(tids) WITH ORDINALITY u (at, nth)
    )
    --> include lease_items
    t.available := t.available - many;
    t.in_flight := t.in_flight + many;
END IF;
