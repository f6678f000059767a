-- Apply a batch, run by run. A run is one request of any sort, or several that are alike: "puts" of
-- items, "acks" that keep results or do not, or the same claim many times.
-- Returns what was claimed, and in a last row all other answers.
--
--   p_call      names this call, for a client that has lost the answer
--   p_secret    cannot be guessed: the tokens are made of it
--   p_shared    the locks of the queues, which every call that changes them shares; an edit takes
--               them alone
--   p_alone     the locks of what one call at a time does in a queue: bounded puts, claims with caps
--   p_queues    with p_names, the live keys that the batch names, if another call may lock them, too
--   p_runs      what is asked for, as JSON
--   p_keys ...  the items of the runs "puts"
--   p_results   what acks and cancels keep, and the values of amends
CREATE FUNCTION lkq.apply_1(
    p_call text, p_now float8, p_buried int, p_history int, p_secret text, p_shared bigint[],
    p_alone bigint[], p_queues text[], p_names text[], p_runs jsonb, p_keys text[],
    p_policies text[], p_values bytea[], p_priorities bigint[], p_kinds text[],
    p_deadlines float8[], p_delays float8[], p_uniques float8[], p_results bytea[]
) RETURNS TABLE (
    --> include columns/claimed
    , answers text
)
LANGUAGE plpgsql
--> include settings
AS $$
#variable_conflict use_column
DECLARE
    now_ float8;
    run jsonb;
    op text;
    q text;
    k text;
    t lkq.tallies; -- what has changed in the queue of the last run
    said jsonb[] := '{}';
    dropped jsonb[] := '{}';
    changed text[] := '{}';
    hot boolean; -- whether a run has changed its queue
    floor_ lkq.floors;
    r lkq.live_1;
    was record;
    one record;
    place jsonb;
    refused jsonb;
    keys text[];
    tokens text[];
    keeps float8[];
    results bytea[];
    kinds text[];
    tids tid[];
    numbers int[];
    total int;
    room int;
    each_ int;
    many int;
    first int; -- the number of the first request of a run
    from_ int;
    to_ int;
    until float8;
    lock bigint;
    size bigint;
    number bigint;
    the_item boolean;
    held boolean;
    everything boolean;
    nothing boolean;
BEGIN
    FOREACH lock IN ARRAY p_shared LOOP
        nothing := pg_advisory_xact_lock_shared(lock) IS NULL;
    END LOOP;
    FOREACH lock IN ARRAY p_alone LOOP
        nothing := pg_advisory_xact_lock(lock) IS NULL;
    END LOOP;
    IF lkq.inbox_has_items_1(p_shared) THEN
        changed := lkq.empty_inbox_1(p_shared, p_now);
    END IF;
    IF p_names IS NOT NULL THEN
        PERFORM FROM (
            SELECT * FROM unnest(p_queues, p_names) n (queue, key) ORDER BY n.queue, n.key
        ) u
        --> include hold_items
    END IF;

    FOR step IN 0..jsonb_array_length(p_runs) - 1 LOOP
        -- The time of each run: the run before may have waited for another call, and a lease lasts
        -- from the moment in which it is given.
        now_ := lkq.now_1(p_now);
        run := p_runs->step;
        op := run->>'op';
        first := (run->>'n')::int;
        IF op = 'claim' THEN
            --> include apply/claim
            CONTINUE;
        ELSIF op = 'urgent' THEN
            --> include apply/urgent
            CONTINUE;
        END IF;
        q := run->>'queue';
        --> include enter_queue
        IF op = 'acks' THEN
            --> include apply/acks
        ELSIF op = 'puts' THEN
            --> include apply/puts
        ELSIF op = 'requeue' THEN
            --> include apply/requeue
        ELSIF op = 'discard' THEN
            --> include apply/discard
        ELSIF op = 'purge' THEN
            --> include apply/purge
        ELSE
            -- All other requests name a key.
            k := run->>'key';
            r := lkq.live_1(q, k);
            now_ := lkq.now_1(p_now);
            --> include apply/without_lease
            ELSIF r.token IS NULL OR r.token IS DISTINCT FROM run->>'token' OR r.due <= now_ THEN
                said := said || jsonb_build_array(first, 'no', '{}'::jsonb);
            ELSIF op = 'extend' THEN
                --> include apply/extend
            ELSIF op = 'release' THEN
                --> include apply/release
            ELSIF op = 'bury' THEN
                --> include apply/bury
            END IF;
        END IF;
        --> include leave_queue
    END LOOP;
    nothing := lkq.tally_1(t) IS NULL;

    n := -1;
    answers := jsonb_build_object('said', said, 'changed', changed, 'dropped', dropped)::text;
    IF changed <> '{}' THEN
        IF p_call IS NOT NULL THEN
            --> include record_call: answers;
        END IF;
        nothing := lkq.tell_1(changed) IS NULL;
    END IF;
    RETURN NEXT;
END $$;
