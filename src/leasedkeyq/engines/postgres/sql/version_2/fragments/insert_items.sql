-- Insert the items of `new` whose keys are not live: scheduled if they have a time, else available.
-- This is the only place where an item begins. Of a key that comes twice, the first is inserted.
INSERT INTO lkq.items AS i
(id, queue, key, state, priority, place, put_at, deadline, due, turn, kind, value)
SELECT n.id, n.queue, n.key, (n.due IS NOT NULL)::int, coalesce(n.priority, 0), n.place, n.put_at,
    n.put_at + n.deadline, n.due, CASE WHEN n.due IS NULL THEN 0 ELSE n.place END, n.kind, n.value
FROM new n
ON CONFLICT (queue, key) DO NOTHING RETURNING i.id, i.place, i.state
