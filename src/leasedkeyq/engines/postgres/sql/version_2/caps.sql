-- Whether the key `k` has room under caps: 1, or 0, or -1 if no key at all has room any more. p_counts
-- says of how many leased keys the patterns are.
CREATE FUNCTION lkq.room_1(p_now float8, p_queue text, k text, p_caps jsonb, p_counts jsonb)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    cap jsonb;
    b lkq.buckets;
    room boolean := true;
BEGIN
    FOR cap IN SELECT c FROM jsonb_array_elements(p_caps) c WHERE k LIKE c->>'like' LOOP
        IF cap ? 'in_flight' THEN
            room := (p_counts->>(cap->>'pattern'))::bigint < (cap->>'in_flight')::bigint;
        END IF;
        IF room AND cap ? 'rate' THEN
            --> include read_bucket
            room := NOT FOUND OR b.full_at <= p_now
                OR b.at + (1 - b.level) / (cap->>'rate')::float8 <= p_now;
        END IF;
        IF NOT room THEN
            RETURN CASE WHEN cap->>'pattern' = '*' AND NOT (cap->>'each')::boolean THEN -1 ELSE 0 END;
        END IF;
    END LOOP;
    RETURN 1;
END $$;

-- The rows that a claim with caps may lease in a queue, in order; their tokens are taken. One such
-- claim at a time works on a queue. With p_lifts, deadlines bring items forward: see `lift_1`.
CREATE FUNCTION lkq.capped_1(
    p_now float8, p_queue text, p_room int, p_key text, p_kinds text[], p_caps jsonb,
    p_in_flight bigint, p_lifts boolean, p_deadline float8, p_shares float8[], p_ups bigint[]
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    firsts CURSOR FOR
        (SELECT key, put_at, deadline FROM lkq.items
        WHERE p_key IS NULL AND queue = p_queue AND state = 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY priority DESC, place)
        UNION ALL
        (SELECT key, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND key = p_key AND state + 0 = 0
            AND (p_kinds IS NULL OR kind = ANY (p_kinds)));
    nearests CURSOR FOR
        SELECT key, put_at, deadline FROM lkq.items
        WHERE queue = p_queue AND state = 0 AND deadline IS NOT NULL
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY deadline, id;
    chosen tid[] := '{}';
    passed text[] := '{}'; -- keys that were chosen, or that another claim is leasing
    first_key text;
    first_at float8;
    first_due float8;
    near_key text;
    near_at float8;
    near_due float8;
    lifts boolean := p_lifts AND p_key IS NULL AND lkq.hurried_1(p_queue);
    found_at tid;
    k text;
    cap jsonb;
    caps jsonb[];
    counts jsonb := '{}';
    pattern_ text;
    prefix text;
    up_to text;
    b lkq.buckets;
    level float8;
    rate float8;
    burst float8;
    room int;
    counted_ boolean := EXISTS (SELECT FROM lkq.floors WHERE queue = p_queue AND counted);
BEGIN
    -- The client has called `count_leased_1` before; if that gave up, or was lost with a server, all
    -- leases of the queue are looked at.
    FOR cap IN SELECT c FROM jsonb_array_elements(p_caps) c WHERE c ? 'in_flight' LOOP
        pattern_ := cap->>'like';
        prefix := cap->>'prefix';
        up_to := prefix || repeat(chr(1114111), 512); -- what begins with it is before that
        counts := counts || jsonb_build_object(cap->>'pattern', CASE
            WHEN pattern_ = '%' THEN
                p_in_flight + (SELECT coalesce(sum(in_flight), 0)::bigint
                    FROM lkq.tallies WHERE queue = p_queue)
            WHEN counted_ THEN
                (SELECT count(*) FROM lkq.items WHERE queue = p_queue AND state = 2 AND counted
                    AND key >= prefix AND key <= up_to AND key LIKE pattern_)
            ELSE
                (SELECT count(*) FROM lkq.items WHERE queue = p_queue AND state = 2 AND turn < 0
                    AND key LIKE pattern_)
        END);
    END LOOP;
    OPEN firsts;
    IF lifts THEN
        OPEN nearests;
    END IF;
    WHILE cardinality(chosen) < p_room LOOP
        -- The first item that has room. What has none now has none later on, either.
        LOOP
            IF first_key IS NOT NULL AND first_key <> ALL (passed) THEN
                room := lkq.room_1(p_now, p_queue, first_key, p_caps, counts);
                EXIT WHEN room <> 0;
            END IF;
            FETCH firsts INTO first_key, first_at, first_due;
            EXIT WHEN NOT FOUND;
        END LOOP;
        EXIT WHEN first_key IS NULL OR room < 0;
        k := first_key;
        IF lifts THEN
            LOOP
                IF near_key IS NOT NULL AND near_key <> ALL (passed) THEN
                    EXIT WHEN lkq.room_1(p_now, p_queue, near_key, p_caps, counts) > 0;
                END IF;
                FETCH nearests INTO near_key, near_at, near_due;
                EXIT WHEN NOT FOUND;
            END LOOP;
            IF near_key IS NOT NULL
                AND lkq.lift_1(p_now, near_at, near_due, p_deadline, p_shares, p_ups)
                    > lkq.lift_1(p_now, first_at, first_due, p_deadline, p_shares, p_ups)
            THEN
                k := near_key;
            END IF;
            passed := passed || k;
        ELSE
            first_key := NULL;
        END IF;
        SELECT ctid INTO found_at FROM lkq.items
        WHERE queue = p_queue AND key = k AND state + 0 = 0 FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        chosen := chosen || found_at;
        caps := ARRAY(SELECT c FROM jsonb_array_elements(p_caps) c WHERE k LIKE c->>'like');
        FOR cap IN SELECT DISTINCT ON (c->>'pattern') c FROM unnest(caps) c WHERE c ? 'in_flight' LOOP
            counts := counts || jsonb_build_object(
                cap->>'pattern', (counts->>(cap->>'pattern'))::bigint + 1
            );
        END LOOP;
        FOREACH cap IN ARRAY caps LOOP
            CONTINUE WHEN NOT cap ? 'rate';
            rate := (cap->>'rate')::float8;
            burst := (cap->>'burst')::float8;
            level := burst;
            --> include read_bucket
            IF FOUND AND b.full_at > p_now THEN
                level := least(burst, b.level + (p_now - b.at) * rate);
            END IF;
            level := greatest(level - 1, 0);
            INSERT INTO lkq.buckets (queue, pattern, each, key, level, at, next_at, full_at)
            VALUES (p_queue, cap->>'pattern', (cap->>'each')::boolean,
                CASE WHEN (cap->>'each')::boolean THEN k ELSE '' END,
                level, p_now, p_now + (1 - level) / rate, p_now + (burst - level) / rate)
            ON CONFLICT (queue, pattern, each, key) DO UPDATE SET level = excluded.level,
                at = excluded.at, next_at = excluded.next_at, full_at = excluded.full_at;
        END LOOP;
    END LOOP;
    CLOSE firsts;
    IF lifts THEN
        CLOSE nearests;
    END IF;
    RETURN chosen;
END $$;

-- From now on, know of the leased keys of a queue how many are like a pattern: what caps ask for. A
-- claim under ten patterns then costs the server a fifth beside 2,000 other leases, and three quarters
-- beside 100. The first time, it takes as long as the queue has leases. No other call changes the queue
-- meanwhile; if others are at it for long, it is left for the next time.
CREATE FUNCTION lkq.count_leased_1(p_queue text) RETURNS void
LANGUAGE plpgsql
--> include settings
SET lock_timeout = '100ms'
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM lkq.floors WHERE queue = p_queue AND counted) THEN
        PERFORM pg_advisory_xact_lock(lkq.lock_1('queue', p_queue));
        INSERT INTO lkq.floors (queue, place, due, counted) VALUES (p_queue, 0, '-infinity', true)
        ON CONFLICT (queue) DO UPDATE SET counted = true;
        -- A lease has a turn below 0: the scheduled ones beside it in the index are passed over.
        UPDATE lkq.items SET counted = true
        WHERE queue = p_queue AND state = 2 AND turn < 0 AND NOT counted;
    END IF;
END $$;
