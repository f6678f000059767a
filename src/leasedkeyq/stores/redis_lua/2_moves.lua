-- The queues as of now, and the moves of their items.
local queues = {}
local opened = {}
local dropped = {}
local store_numbers = false -- the last id and fence of the whole store; a cluster has them by queue

-- Writes that can wait are made together, before anybody looks.
local pending = {}

local function flush()
  for _, writes in ipairs(pending) do
    call_many(writes[1], writes[2], writes[3])
  end
  pending = {}
  for _, queue in ipairs(opened) do
    queue.new, queue.later = false, false
  end
end

-- The arguments that are gathered for one command on one key.
local function gathered(command, key)
  for _, writes in ipairs(pending) do
    if writes[2] == key and writes[1] == command then
      return writes[3]
    end
  end
  local arguments = {}
  pending[#pending + 1] = { command, key, arguments }
  return arguments
end

local COUNTERS = { 'back', 'front', 'turns', 'burials', 'fence' }

local function expect(queue, due)
  if not queue.earliest or due < queue.earliest then
    queue.earliest = due
  end
end

local function find_earliest(queue)
  local first = call('ZRANGE', queue.t, 0, 0, 'WITHSCORES')
  queue.earliest = first[2] and tonumber(first[2]) or false
end

local function open(name)
  local base = prefix .. ':{' .. escape(name) .. '}:'
  local queue = { name = name, base = base, changed = false, counted = false, shrunk = false }
  for _, part in ipairs({ 'i', 'o', 'r', 't', 'l', 'm', 'n', 'p', 'b', 'd', 'c', 'cf', 'x' }) do
    queue[part] = base .. part
  end
  local counters = call('HMGET', queue.m, unpack(COUNTERS))
  for number, counter in ipairs(COUNTERS) do
    queue[counter] = tonumber(counters[number] or 0)
  end
  queue.buffered = call('HLEN', queue.n)
  find_earliest(queue)
  queues[name] = queue
  opened[#opened + 1] = queue
  return queue
end

local function numbers()
  if not store_numbers then
    local found = call('HMGET', prefix .. ':m', 'id', 'fence')
    store_numbers = { id = tonumber(found[1] or 0), fence = tonumber(found[2] or 0) }
  end
  return store_numbers
end

-- Ids and fences follow the server's time, so that they do not come again even if it has lost some.
local next_given = false

local function next_id()
  if clustered then
    next_given = next_given + 1
    return next_given - 1
  end
  local last = numbers()
  last.id = math.max(last.id + 1, micros)
  last.changed = true
  return last.id
end

local function next_fence(queue)
  local last = clustered and queue or numbers()
  last.fence = math.max(last.fence + 1, micros)
  last.changed = true
  queue.counted = queue.counted or clustered
  return last.fence
end

local function save(queue, key, item)
  queue.changed = true
  hset(queue.i, key, pack_item(item))
end

local function make_ready(queue, key, item, front)
  item.state, item.due = 0, 0
  queue.counted = true
  if front then
    queue.front = queue.front - 1
    item.place = queue.front
  else
    queue.back = queue.back + 1
    item.place = queue.back
  end
  zadd(queue.r, -item.priority, place_member(item.place, key))
end

local function place(queue, key, item, due, moment, front)
  if due and due > moment then
    queue.turns = queue.turns + 1
    queue.counted = true
    item.state, item.due, item.place = 1, due, queue.turns
    zadd(queue.t, due, place_member(queue.turns, key))
    expect(queue, due)
  else
    make_ready(queue, key, item, front)
  end
end

-- Takes an item that is not in flight out of its place.
local function leave(queue, key, item)
  zrem(item.state == 0 and queue.r or queue.t, place_member(item.place, key))
end

local function end_lease(queue, key, lease)
  hdel(queue.l, key)
  local fence, _, expires = sunpack('>ddd', lease)
  if expires ~= 0 then
    zrem(queue.t, place_member(-fence, key))
  end
end

local function next_of(queue, key)
  local raw = queue.buffered > 0 and call('HGET', queue.n, key)
  return raw and unpack_item(raw)
end

local function drop_next(queue, key)
  hdel(queue.n, key)
  zrem(queue.p, key)
  queue.buffered = queue.buffered - 1
end

-- The buffered item takes the place of the one whose lease has ended.
local function replace(queue, key, following)
  drop_next(queue, key)
  zadd(queue.o, following.id, key)
end

local function bring_back(queue, key, item, due, moment, front)
  local not_before = item.due ~= 0 and item.due or nil
  local following = next_of(queue, key)
  if following then
    replace(queue, key, following)
    item = following
    not_before = item.due ~= 0 and item.due or nil
    front = false
  end
  if not due or (not_before and not_before > due) then
    due = not_before
  end
  place(queue, key, item, due, moment, front)
  save(queue, key, item)
end

local function remember(item, how, error, moment)
  local past = item.history ~= '' and cmsgpack.unpack(item.history) or {}
  past[#past + 1] = { item.attempt, moment, how, error }
  while #past > max_history do
    table.remove(past, 1)
  end
  item.history = #past > 0 and cmsgpack.pack(past) or ''
end

local function come_due(queue, member)
  local key = string.sub(member, 9)
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
  if queue.buffered == 0 or call('HEXISTS', queue.n, key) == 0 then
    remember(item, 'expired', '', expires)
  end
  bring_back(queue, key, item, nil, expires, true)
end

-- Deals with what has come due, each as of its own moment. Answers how many of `most` moves are left,
-- or false: there is more to do.
local function advance(queue, most)
  while queue.earliest and queue.earliest <= now do
    local due = call('ZRANGEBYSCORE', queue.t, '-inf', now_text, 'LIMIT', 0, 100)
    for _, member in ipairs(due) do
      if most <= 0 then
        find_earliest(queue)
        return false
      end
      most = most - 1
      local turns = queue.turns
      come_due(queue, member)
      if queue.turns ~= turns then
        break -- It is scheduled: its moment may have come, too, and lie before those of the rest.
      end
    end
    find_earliest(queue)
  end
  return most
end

local function at(name)
  local queue = queues[name] or open(name)
  if queue.earliest and queue.earliest <= now then
    advance(queue, math.huge)
  end
  return queue
end

local function drop_aside(queue, part, number)
  local raw = call('HGET', queue[part], number)
  if not raw then
    return false
  end
  local key, item = unpack_aside(raw)
  queue.shrunk = true
  hdel(queue[part], number)
  zrem(queue[part] .. 'o', number)
  zrem(queue[part] .. 't', number)
  zrem(queue[part] .. 'k', key .. '\0' .. number)
  return key, item
end

local function set_aside(queue, part, key, error, item, order)
  local number = string.format('%.0f', item.id)
  queue.changed, queue.shrunk = true, true
  if queue.later then
    local later = queue.later
    later.records[#later.records + 1] = number
    later.records[#later.records + 1] = pack_aside(key, error, item)
    later.ids[#later.ids + 1] = item.id
    later.ids[#later.ids + 1] = number
    later.dues[#later.dues + 1] = order
    later.dues[#later.dues + 1] = number
    later.keys[#later.keys + 1] = 0
    later.keys[#later.keys + 1] = key .. '\0' .. number
    return
  end
  hset(queue[part], number, pack_aside(key, error, item))
  zadd(queue[part] .. 'o', item.id, number)
  zadd(queue[part] .. 't', order, number)
  zadd(queue[part] .. 'k', 0, key .. '\0' .. number)
end

-- Forgets old results. True: there are more.
local function forget(queue, most)
  local old = call('ZRANGEBYSCORE', queue.d .. 't', '-inf', now_text, 'LIMIT', 0, most)
  for _, number in ipairs(old) do
    drop_aside(queue, 'd', number)
  end
  return #old == most
end

local function results_of(queue)
  return call('ZCOUNT', queue.d .. 't', '(' .. now_text, '+inf')
end

-- An empty queue leaves its counters behind, for a day.
local function tidy(queue)
  if queue.counted then
    local values = {}
    for _, counter in ipairs(COUNTERS) do
      values[#values + 1] = counter
      values[#values + 1] = queue[counter]
    end
    call('HSET', queue.m, unpack(values))
  end
  if queue.shrunk and call('HLEN', queue.i) + call('HLEN', queue.b) == 0 then
    call('EXPIRE', queue.m, 86400)
  elseif queue.counted then
    call('PERSIST', queue.m)
  end
end
