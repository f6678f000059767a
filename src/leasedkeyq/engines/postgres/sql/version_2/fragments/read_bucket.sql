-- The bucket `b` of the cap `cap`, for the key `k` of the queue `p_queue`; a full one has no row.
SELECT * INTO b FROM lkq.buckets WHERE queue = p_queue
    AND pattern = cap->>'pattern' AND each = (cap->>'each')::boolean
    AND key = CASE WHEN (cap->>'each')::boolean THEN k ELSE '' END;
