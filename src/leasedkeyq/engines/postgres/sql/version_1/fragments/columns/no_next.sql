-- No value is buffered any more.
next_id = NULL, next_priority = NULL, next_not_before = NULL, next_put_at = NULL,
next_deadline = NULL, next_kind = NULL, next_value = NULL
