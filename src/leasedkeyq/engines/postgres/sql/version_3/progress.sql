-- The progress of an item is the last entry of its history, as a text in Base64: so it goes wherever the
-- history goes, and costs nothing where there is none.

-- A program that knows only version 2 could not read such a history.
UPDATE lkq.version SET usable_from = 3;

-- The history of an item when one more lease of it has ended.
CREATE FUNCTION lkq.remember_1(
    p_past jsonb, p_attempt int, p_moment float8, p_how text, p_error text, p_most int
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    kept jsonb;
    progress jsonb;
BEGIN
    IF jsonb_typeof(p_past->-1) = 'string' THEN
        progress := p_past->-1;
        p_past := p_past - (-1);
    END IF;
    kept := coalesce(p_past, '[]') || jsonb_build_array(jsonb_build_object(
        'number', p_attempt, 'ended_at', p_moment, 'how', p_how, 'error', p_error
    ));
    WHILE jsonb_array_length(kept) > greatest(p_most, 0) LOOP
        kept := kept - 0;
    END LOOP;
    IF progress IS NOT NULL THEN
        kept := kept || jsonb_build_array(progress);
    END IF;
    RETURN nullif(kept, '[]');
END $$;
