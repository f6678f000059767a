-- Record a put of one item, that of `added`, and answer as `apply_1` does. The answers are made once,
-- here, for a client that hears them and for one that has to ask again. The argument says what was done.
--> include record_call: json_build_object('said', json_build_array(json_build_array(0,
        --> argument
    )), 'changed', json_build_array(p_queue), 'dropped', '{}'::text[])
FROM added a RETURNING answers
