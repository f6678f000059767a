-- The queue `q` is told of once, however many of its requests have changed it.
IF hot AND q <> ALL (changed) THEN
    changed := changed || q;
END IF;
