-- Record that the call `p_call` was applied, with its answers.
INSERT INTO lkq.calls (at, call, answers)
SELECT extract(epoch FROM now()), p_call,
    --> argument
