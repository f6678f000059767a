-- Records, numbers and writes of a batch.
local pack_item, unpack_item, pack_aside, unpack_aside, hset, hdel, zadd, zrem, write
local journal = false -- or what each write of an edit has replaced, so that it can be undone

if puts or keeps or moves then
  -- An item as a table, for what changes it. What only passes it on uses the record as it is.
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

-- How the index `p` calls a value in line, and how its entry in `n` begins.
local function line_member(key, id)
  return key .. '\0' .. spack('>I8', id)
end

-- Where the line of a key begins and ends in `n`.
local function line_range(key)
  return '[' .. key .. '\0', '(' .. key .. '\1'
end

-- A value in line as a table, with the fields of an item.
local function unpack_line(member, key)
  local at = #key + 2
  local id, put_at, priority, due, deadline, replaces, kinds = sunpack(LINE, member, at)
  at = at + LINE_SIZE
  return {
    id = id, put_at = put_at, priority = priority, place = 0, due = due, deadline = deadline, attempt = 0,
    state = 0, kind = sub(member, at, at + kinds - 1), history = '', value = sub(member, at + kinds),
    replaces = replaces == 1, member = member,
  }
end

local function pack_line(key, value)
  return key .. '\0' .. spack(LINE, value.id, value.put_at, value.priority, value.due, value.deadline,
    value.replaces and 1 or 0, #value.kind) .. value.kind .. value.value
end

-- How `write_aside` has named what has left its key, in the index by key.
local function aside_member(key, id, ended, outcome)
  return key .. '\0' .. spack(ASIDE, ended and not outcome and 1 or 0, ended or 0, id)
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

-- The next number of a batch: how many it needs is known at its end, when the last one is written.
local last_number, written_number = false, false

local function next_number(queue)
  if clustered then
    queue.last, queue.noted = reserve_numbers(1, queue.last), true
    return queue.last
  elseif last_number then
    last_number = last_number + 1
  else
    last_number = reserve_numbers(1)
    written_number = last_number
  end
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

  -- As `call`, noted while an edit is applied.
  function write(command, key, first, second)
    local write_one = command == 'HSET' and hset or zadd
    write_one(key, first, second)
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

-- Writes that can wait are made together, before anybody looks: a batch of puts or of acks then makes one
-- command for each key of the queue. Of a queue, `fresh` has the keys of new items that are not written yet,
-- `gone` those of acknowledged ones that are not removed yet, `followed` those of which the first of the line has
-- not followed yet, and `appended` is whether values in line are not written yet.
local pending, arguments_of = {}, {}

local function flush()
  if not pending[1] then
    return
  end
  local writes = pending
  pending, arguments_of = {}, {}
  for number = 1, #writes do
    local command, key, arguments, queue = unpack(writes[number])
    local sound, failure = pcall(call_many, command, key, arguments)
    if not sound then
      touched = queue
      queue.damaged = damage(failure)
    end
  end
  for number = 1, #opened do
    local queue = opened[number]
    queue.fresh, queue.gone, queue.followed, queue.appended = {}, false, false, false
  end
end

-- As `call` on the queue that is looked at, with the next flush. A run of puts or of acks makes one kind of
-- command on each key.
local function gather(command, key, first, second)
  local arguments = arguments_of[key]
  if not arguments then
    arguments = {}
    arguments_of[key] = arguments
    pending[#pending + 1] = { command, key, arguments, touched }
  end
  local size = #arguments
  arguments[size + 1], arguments[size + 2] = first, second
end

-- Takes items that are being leased out of the index of deadlines, if they are in it.
local function drop_deadlines(queue, keys, records)
  for number = 1, #keys do
    local raw = records[number]
    if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
      call('ZREM', queue.u, deadline_member(sunpack('>d', raw), keys[number]))
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
