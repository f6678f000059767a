INSERT INTO lkq.calls (at, call, answers)
SELECT extract(epoch FROM now()), p_call, json_build_object(
    'said', json_build_array(json_build_array(0, 'ids', json_build_array(a.id))),
    'changed', json_build_array(p_queue), 'dropped', '{}'::text[])
FROM added a RETURNING answers
