-- The first value in the line of the key `u.key` in the queue `t.queue`. It is looked for behind
-- `h.line_from`: the values that were there before stay in the index as long as any transaction in the
-- database is older than their end.
SELECT l.ctid AS at, l.* FROM lkq.line l
WHERE l.queue = t.queue AND l.key = u.key AND l.id > h.line_from
ORDER BY l.queue, l.key, l.id LIMIT 1
