-- Records, numbers and writes.
local pack_item, unpack_item, pack_aside, unpack_aside, hset, hdel, zadd, zrem
local journal = false

local function place_member(place, key)
  return spack('>I8', MIDDLE + place) .. key
end

-- How the index of deadlines calls an item: of two with one deadline, the lower id is first.
local function hurried_member(id, key)
  return spack('>I8', id) .. key
end

if puts or keeps or moves then
  function pack_item(item)
    return spack(ITEM, item.id, item.put_at, item.priority, item.place, item.due, item.deadline,
      item.attempt, item.state, #item.kind, #item.history) .. item.kind .. item.history .. item.value
  end

  function unpack_item(raw)
    local id, put_at, priority, place, due, deadline, attempt, state, kinds, past = sunpack(ITEM, raw)
    local at = ITEM_SIZE + kinds
    return {
      id = id, put_at = put_at, priority = priority, place = place, due = due, deadline = deadline,
      attempt = attempt, state = state, kind = sub(raw, ITEM_SIZE + 1, at), history = sub(raw, at + 1, at + past),
      value = sub(raw, at + past + 1),
    }
  end
end

-- What has left its key: buried items and results.
if keeps then
  function pack_aside(key, error, item)
    return spack('>I4I4', #key, #error) .. key .. error .. pack_item(item)
  end

  function unpack_aside(raw)
    local keys, errors = sunpack('>I4I4', raw)
    local at = 8 + keys
    return sub(raw, 9, at), unpack_item(sub(raw, at + errors + 1))
  end
end

-- Ids, fences and places are numbers that follow the server's time, so that they do not come again
-- even if it has lost some. They are counted for the whole store; on a cluster, by queue, and the ids
-- of new items come with the request.
local last_number, written_number = false, false
local next_given = false

local function next_number(queue)
  if clustered then
    queue.last = max(queue.last + 1, micros)
    queue.noted = true
    return queue.last
  end
  if not last_number then
    -- Mostly the time is ahead of the last one, and the first one given is the only one.
    written_number = micros
    last_number = tonumber(call('SET', prefix .. ':m', written_number, 'GET') or 0)
    if last_number >= micros then
      written_number = last_number + 1
      call('SET', prefix .. ':m', written_number)
    end
  end
  last_number = max(last_number + 1, micros)
  return last_number
end

-- Writes. While an edit is applied, each is noted with what it replaces.
if puts or keeps or moves then
  function hset(hash, field, value)
    if journal then
      journal[#journal + 1] = { 'h', hash, field, call('HGET', hash, field) }
    end
    call('HSET', hash, field, value)
  end

  function zadd(set, score, member)
    if journal then
      journal[#journal + 1] = { 'z', set, member, call('ZSCORE', set, member) }
    end
    call('ZADD', set, score, member)
  end

  function zrem(set, member)
    if journal then
      journal[#journal + 1] = { 'z', set, member, call('ZSCORE', set, member) }
    end
    call('ZREM', set, member)
  end

  function hdel(hash, field)
    if journal then
      journal[#journal + 1] = { 'h', hash, field, call('HGET', hash, field) }
    end
    call('HDEL', hash, field)
  end
end

-- Commands with any number of arguments, in steps that fit on Lua's stack.
local function call_many(command, key, arguments)
  local count = #arguments
  if count <= CHUNK then
    if count > 0 then
      call(command, key, unpack(arguments))
    end
    return
  end
  for first = 1, count, CHUNK do
    call(command, key, unpack(arguments, first, min(first + CHUNK - 1, count)))
  end
end

-- Writes that can wait are made together, before anybody looks.
local pending = {}

local function flush()
  local writes = pending
  pending = {}
  for number = 1, #writes do
    local command, key, arguments, queue = unpack(writes[number])
    local sound, failure = pcall(call_many, command, key, arguments)
    if not sound then
      touched = queue
      queue.damaged = damage(failure)
    end
  end
  for number = 1, #opened do
    opened[number].new, opened[number].later = false, false
  end
end

-- The arguments that are gathered for one command on one key of a queue.
local function gathered(command, key, queue)
  local arguments = {}
  pending[#pending + 1] = { command, key, arguments, queue }
  return arguments
end

-- Takes items that are being leased out of the index of deadlines, if they are in it.
local function no_longer_hurried(queue, keys, records)
  for number = 1, #keys do
    local raw = records[number]
    if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
      call('ZREM', queue.u, hurried_member(sunpack('>d', raw), keys[number]))
    end
  end
end

-- A record that has to be there, and to be one.
local function there(raw)
  return raw and #raw >= ITEM_SIZE and raw or error('attempt to use a record that is missing')
end

-- The records of keys, as they were before what is gathered.
local function records_of(queue, keys)
  if #keys == 1 then
    return { call('HGET', queue.i, keys[1]) }
  end
  local records = {}
  for first = 1, #keys, CHUNK do
    local last = min(first + CHUNK - 1, #keys)
    for _, raw in ipairs(call('HMGET', queue.i, unpack(keys, first, last))) do
      records[#records + 1] = raw
    end
  end
  return records
end
