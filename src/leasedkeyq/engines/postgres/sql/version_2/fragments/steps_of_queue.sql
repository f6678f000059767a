-- By what an item of the queue with the number `q` is lifted: the queue's deadline, and its steps.
deadlines[q],
ARRAY(SELECT s.share FROM unnest(steps, shares) s (number, share) WHERE s.number = q),
ARRAY(SELECT s.up FROM unnest(steps, ups) s (number, up) WHERE s.number = q)
