-- How items go from one state to the next.
local save, enter, make_ready, place, leave, end_lease, replace, bring_back, remember, note_progress
local first_in_line, last_in_line, in_line, line_size, write_line, take_out, leave_line
local holder, add_behind, hold, let_go
local verbs, dropped = {}, {} -- what requests ask for; {queue, key, ...} of buried items that were dropped
local find_earliest, advance, set_aside, drop_aside, forget, results_of, end_edit, text, now_text

-- An item of the queue comes due at that moment: until the first such moment, calls need not look.
local function expect(queue, due)
  if due < queue.earliest then
    queue.earliest, queue.noted = due, true
  end
end

-- The queue of a request, as of now: what came due meanwhile, in this call, has moved.
local function at(name)
  local queue = queues[name]
  touched = queue
  if queue.damaged then
    error('attempt to use a damaged queue')
  elseif queue.earliest <= now then
    advance(queue, huge)
  end
  return queue
end

if puts or moves then
  -- Every change of a live item is written here, and so wakes the watchers of its queue.
  function save(queue, key, item)
    queue.changed = true
    hset(queue.i, key, pack_item(item))
  end

  -- An item is available from now on, in its place.
  function enter(queue, key, item)
    zadd(queue.r, -item.priority, place_member(item.place, key))
    if item.deadline ~= 0 then
      zadd(queue.u, item.deadline, deadline_member(item.id, key))
    end
  end

  -- The number of a place is below zero for the front: the later, the further in front.
  function make_ready(queue, key, item, front)
    item.state, item.due = 0, 0
    item.place = front and -next_number(queue) or next_number(queue)
    enter(queue, key, item)
  end

  -- Takes an item that is not in flight out of its place.
  function leave(queue, key, item)
    zrem(item.state == 0 and queue.r or queue.t, place_member(item.place, key))
    if item.state == 0 and item.deadline ~= 0 then
      zrem(queue.u, deadline_member(item.id, key))
    end
  end

  -- Most queues have no lines at all: their notes save a look at each key.
  function first_in_line(queue, key)
    if not queue.lined then
      return nil
    end
    local least, most = line_range(key)
    local member = call('ZRANGEBYLEX', queue.n, least, most, 'LIMIT', 0, 1)[1]
    return member and unpack_line(member, key)
  end

  function last_in_line(queue, key)
    if not queue.lined then
      return nil
    end
    local least, most = line_range(key)
    local member = call('ZREVRANGEBYLEX', queue.n, most, least, 'LIMIT', 0, 1)[1]
    return member and unpack_line(member, key)
  end

  -- The value in the line of a key that has this id.
  function in_line(queue, key, id)
    if not queue.lined or id < 0 or id >= 2 * MIDDLE then
      return nil
    end
    local member = call('ZRANGEBYLEX', queue.n, '[' .. line_member(key, id), '(' .. line_member(key, id + 1),
      'LIMIT', 0, 1)[1]
    return member and unpack_line(member, key)
  end

  function line_size(queue, key)
    return queue.lined and call('ZLEXCOUNT', queue.n, line_range(key)) or 0
  end

  -- A new value in line, or one that has changed and was taken out before. `how`: see `insert` in input.lua.
  function write_line(queue, key, value, how)
    how('ZADD', queue.n, 0, pack_line(key, value))
    how('ZADD', queue.p, value.id, line_member(key, value.id))
    queue.changed = true
    if not queue.lined then
      queue.lined, queue.noted = true, true
    end
  end

  -- Takes a value out of `n`. Its bytes need not be named for that, but to undo it.
  function take_out(queue, key, value)
    if journal then
      zrem(queue.n, value.member)
    else
      call('ZREMRANGEBYLEX', queue.n, '[' .. line_member(key, value.id), '(' .. line_member(key, value.id + 1))
    end
    queue.changed, queue.left_line = true, true -- At the end it is seen whether there are others.
  end

  -- A value leaves the line of its key.
  function leave_line(queue, key, value)
    take_out(queue, key, value)
    zrem(queue.p, line_member(key, value.id))
  end

  -- The id of the buried item that holds a key.
  function holder(queue, key)
    return queue.holding and call('HGET', queue.h, key)
  end

  -- So many more values are behind buried items that hold their keys.
  function add_behind(queue, count)
    hset(queue.h, '\0', string.format('%.0f', (call('HGET', queue.h, '\0') or 0) + count))
  end
end

if moves then
  local max_history = input[5]
  local turns = 0 -- how often an item was scheduled

  -- A double as text that is exactly that number again.
  function text(number)
    return string.format('%.17g', number)
  end
  now_text = text(now)

  -- What comes due next in a queue, when that may have gone.
  function find_earliest(queue)
    local earliest = first_score(queue.t)
    if earliest ~= queue.earliest then
      queue.earliest, queue.noted = earliest, true
    end
  end

  -- An item that is due later waits in `t`; `moment` is when it was decided, which may be past.
  function place(queue, key, item, due, moment, front)
    if due and due > moment then
      turns = turns + 1
      item.state, item.due, item.place = 1, due, next_number(queue)
      zadd(queue.t, due, place_member(item.place, key))
      expect(queue, due)
    else
      make_ready(queue, key, item, front)
    end
  end

  -- A lease may be in three places: `l`, `t` if it expires, and the counts by pattern.
  function end_lease(queue, key, lease)
    hdel(queue.l, key)
    if queue.kept or queue.lease_counts then
      ended(queue, key)
    end
    local fence, _, expires = sunpack('>ddd', lease)
    if expires ~= 0 then
      zrem(queue.t, place_member(-fence, key))
    end
  end

  -- A buffered value takes the place of the head whose lease has ended, and takes over its attempts and its
  -- history. Any other value in line goes on waiting. Answers the buffered value.
  function replace(queue, key, item)
    local following = first_in_line(queue, key)
    if not following or not following.replaces then
      return nil
    end
    leave_line(queue, key, following)
    zadd(queue.o, following.id, key)
    following.attempt, following.history = item.attempt, item.history
    return following
  end

  function bring_back(queue, key, item, due, moment, front)
    local following = replace(queue, key, item)
    if following then
      item = following
      front = false
    end
    local not_before = item.due ~= 0 and item.due or nil
    if not due or (not_before and not_before > due) then
      due = not_before
    end
    place(queue, key, item, due, moment, front)
    save(queue, key, item)
  end

  -- The past attempts of an item, and its progress: a text behind them, if it has one.
  local function read_history(item)
    local past = item.history ~= '' and cmsgpack.unpack(item.history) or {}
    return past, type(past[#past]) == 'string' and table.remove(past) or nil
  end

  local function write_history(item, past, progress)
    past[#past + 1] = progress
    item.history = #past > 0 and cmsgpack.pack(past) or ''
  end

  -- The history of an item has a limit: the oldest attempts are forgotten.
  function remember(item, how, error, moment)
    local past, progress = read_history(item)
    past[#past + 1] = { item.attempt, moment, how, error }
    while #past > max_history do
      table.remove(past, 1)
    end
    write_history(item, past, progress)
  end

  -- How far the work on an item has come, in place of what was told before.
  function note_progress(item, progress)
    write_history(item, read_history(item), progress)
  end

  -- A member of `t` is a scheduled item, or a lease (its number is below zero).
  local function come_due(queue, member)
    local key = sub(member, 9)
    local item = unpack_item(call('HGET', queue.i, key))
    if sunpack('>I8', member) > MIDDLE then
      zrem(queue.t, member)
      make_ready(queue, key, item, false)
      save(queue, key, item)
      return
    end
    local lease = call('HGET', queue.l, key)
    local _, _, expires = sunpack('>ddd', lease)
    end_lease(queue, key, lease)
    item.attempt = item.attempt + 1
    remember(item, 'expired', '', expires)
    bring_back(queue, key, item, nil, expires, true)
  end

  -- Deals with what has come due, each as of its own moment. Answers how many of `most` moves are
  -- left, or false: there is more to do.
  function advance(queue, most)
    while queue.earliest <= now do
      local due = call('ZRANGEBYSCORE', queue.t, '-inf', now_text, 'LIMIT', 0, 100)
      for _, member in ipairs(due) do
        if most <= 0 then
          find_earliest(queue)
          return false
        end
        most = most - 1
        local before = turns
        come_due(queue, member)
        if turns ~= before then
          break -- It is scheduled: its moment may have come, too, and lie before those of the rest.
        end
      end
      find_earliest(queue)
    end
    return most
  end

  -- A buried item holds its key from now on: its line waits, and what a buffered value was to replace is kept.
  function hold(queue, key, id)
    local first = first_in_line(queue, key)
    if first and first.replaces then
      take_out(queue, key, first)
      first.replaces = false
      write_line(queue, key, first, write)
    end
    hset(queue.h, key, string.format('%.0f', id))
    add_behind(queue, line_size(queue, key))
    queue.holding, queue.noted = true, true
  end

  -- The key is not held any more.
  function let_go(queue, key)
    hdel(queue.h, key)
    add_behind(queue, -line_size(queue, key))
    queue.let_go = true -- At the end it is seen whether others are held.
  end

  -- The queue is free for others from now on.
  function end_edit(queue)
    call('DEL', queue.m) -- That needs no memory, and then there is some for new notes.
    queue.edited, queue.editor, queue.noted = 0, '', true
  end
end

-- What has left its key.
if keeps then
  -- An item leaves its key, for `b` or `d`. `how` it is written: see `insert` in input.lua.
  function set_aside(queue, part, key, error, item, order, how)
    local outcome = part == 'd' and OUTCOMES[item.state]
    queue.changed = true
    write_aside(how or write, queue[part], item.id, key, pack_aside(key, error, item), order, outcome,
      part == 'd' and item.place)
    if part == 'd' and order < queue.over then
      queue.over, queue.noted = order, true
    end
  end

  -- Answers the key and the item, or false: it is not there.
  function drop_aside(queue, part, number)
    local base = queue[part]
    local raw = call('HGET', base, number)
    if not raw then
      return false
    end
    local key, item = unpack_aside(raw)
    hdel(base, number)
    zrem(base .. 'o', number)
    zrem(base .. 't', number)
    local outcome = part == 'd' and OUTCOMES[item.state]
    zrem(base .. 'k', aside_member(key, item.id, part == 'd' and item.place, outcome))
    if outcome then
      zrem(base .. outcome, number)
    end
    return key, item
  end

  -- Forgets old results. True: there are more.
  function forget(queue, most)
    local index = queue.d .. 't'
    local old = call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)
    for _, number in ipairs(old) do
      drop_aside(queue, 'd', number)
    end
    local over = first_score(index)
    if over ~= queue.over then
      queue.over, queue.noted = over, true
    end
    return #old == most
  end

  -- How many results of an index are not old: of 't' all, or those of an outcome.
  function results_of(queue, index)
    return call('ZCOUNT', queue.d .. index, '(' .. text(now), '+inf')
  end
end
