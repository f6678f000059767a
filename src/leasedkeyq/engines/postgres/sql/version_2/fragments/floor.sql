-- Where to begin to look in the queue `q`, as one row: see the table `floors`. A clock that was set
-- back makes void what is known of what comes due.
(
    SELECT coalesce(known.place, 0) AS place,
        CASE WHEN known.due <= now_ THEN known.due ELSE '-infinity' END AS due,
        coalesce(known.counted, false) AS counted, known.queue, known.due > now_ AS set_back
    FROM (SELECT) always LEFT JOIN lkq.floors known ON known.queue = q
) f
