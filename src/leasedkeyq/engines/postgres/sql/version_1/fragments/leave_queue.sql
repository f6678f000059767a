IF hot AND q <> ALL (changed) THEN
    changed := changed || q;
END IF;
