state = r.state, priority = r.priority, place = r.place, turn = r.turn, attempt = r.attempt,
due = r.due, not_before = r.not_before, token = r.token, history = r.history
