-- As `tell_1`, for one queue: a name that may be too long to be told is left to that.
CASE
    WHEN octet_length(p_queue) < 1000 THEN pg_notify('lkq', json_build_array(p_queue)::text)
    ELSE lkq.tell_1(ARRAY[p_queue])
END IS NULL
