-- Insert the results of `ended`. This is the only place where a result begins.
INSERT INTO lkq.done
(id, queue, key, priority, attempt, put_at, due, ended_at, outcome, history, kind, value)
SELECT id, queue, key, priority, attempt, put_at, due, now_, outcome, history, kind, value FROM ended
