-- What is damaged in a queue, and how it is made usable again.
--
-- The records of items, leases, values in line, buried items and results say where each of them belongs:
-- the indexes are made anew from them, under other names, while no other call may change the queue, and then
-- take the place of the old ones. What is no record is set aside.
if repairs then
  -- {'examine', name}: what is damaged, as {part, the type that it has, or ''}.
  local TYPES = {
    i = 'hash', l = 'hash', b = 'hash', d = 'hash', h = 'hash', c = 'hash', x = 'hash',
    n = 'zset', o = 'zset', r = 'zset',
    t = 'zset', p = 'zset', bo = 'zset', bk = 'zset', bt = 'zset', ['do'] = 'zset', dk = 'zset', dt = 'zset',
    df = 'zset', dc = 'zset',
    cf = 'zset', cn = 'zset', u = 'zset', m = 'string', s = 'set',
  }

  -- Servers answer TYPE in two ways.
  local function type_of(key)
    local found = call('TYPE', key)
    return type(found) == 'table' and found.ok or found
  end

  -- {part, type} of the parts of a queue that are of another type than theirs.
  local function strangers(queue)
    local found = {}
    for part, wanted in pairs(TYPES) do
      local kind = type_of(queue.base .. part)
      if kind ~= wanted and kind ~= 'none' then
        found[#found + 1] = { part, kind }
      end
    end
    return found
  end

  -- A queue of which every part has its type may still miss entries.
  function verbs.examine(request)
    local queue = queues[request[2]]
    local found = strangers(queue)
    if not found[1] then
      local part = flaw(queue)
      found[1] = part and { part, '' }
    end
    return found
  end

  local INDEXES = { 'o', 'r', 't', 'u', 'p', 'h', 'bo', 'bk', 'bt', 'do', 'dk', 'dt', 'df', 'dc' }

  -- The name of an index while it is made.
  local function new_index(queue, part)
    return queue.base .. '~' .. part
  end

  -- Each step of a repair has the time of an edit, from its end on.
  local function hold(queue, milliseconds)
    queue.edited, queue.editor, queue.noted = micros + milliseconds * 1000, edit_token, true
    queue.earliest = -huge -- The next call has to look.
  end

  -- {'repair', name, milliseconds}: begins. Answers the keys that were of another type, and their names now.
  function verbs.repair(request)
    local queue, aside = queues[request[2]], {}
    for _, found in ipairs(strangers(queue)) do
      local key = queue.base .. found[1]
      local name = key .. ':damaged:' .. string.format('%.0f', micros)
      call('RENAME', key, name)
      aside[#aside + 1], aside[#aside + 2] = key, name
    end
    for _, part in ipairs(INDEXES) do
      call('UNLINK', new_index(queue, part))
    end
    hold(queue, request[3])
    return aside
  end

  -- A record of an item that can be read.
  local function readable(raw)
    if #raw < ITEM_SIZE then
      return false
    end
    local _, _, _, _, _, _, _, _, kinds, past = sunpack(ITEM, raw)
    return #raw >= ITEM_SIZE + kinds + past
  end

  -- As `insert` in input.lua and `enter` do, in the new indexes; a leased item is in none by place.
  local function index_item(queue, key, item)
    call('ZADD', new_index(queue, 'o'), item.id, key)
    if call('HEXISTS', queue.l, key) == 0 then
      local due = item.state == 1
      call('ZADD', new_index(queue, due and 't' or 'r'), due and item.due or -item.priority,
        place_member(item.place, key))
      if not due and item.deadline ~= 0 then
        call('ZADD', new_index(queue, 'u'), item.deadline, deadline_member(item.id, key))
      end
    end
  end

  -- What cannot be read is kept for people who can.
  local function set_record_aside(queue, part, name, raw)
    call('HSET', queue.base .. part .. ':damaged', name, raw)
    call('HDEL', queue.base .. part, name)
    return 'aside'
  end

  -- The id of the item of a key, as an index has it.
  local function item_id(queue, key)
    local found = call('ZSCORE', new_index(queue, 'o'), key)
    return found
  end

  local mend = {}

  -- A lease on nothing goes.
  function mend.l(queue, key, raw)
    if #raw < 24 or call('HEXISTS', queue.i, key) == 0 then
      call('HDEL', queue.l, key)
      return 'gone'
    end
    local fence, _, expires = sunpack('>ddd', raw)
    if expires ~= 0 then
      call('ZADD', new_index(queue, 't'), expires, place_member(-fence, key))
    end
    return 'kept'
  end

  -- An item is where its record says.
  function mend.i(queue, key, raw)
    if not readable(raw) then
      return set_record_aside(queue, 'i', key, raw)
    end
    index_item(queue, key, unpack_item(raw))
    return 'kept'
  end

  -- A value in line becomes the head of its key.
  local function make_head(queue, key, value)
    leave_line(queue, key, value)
    value.place, value.state = next_number(queue), value.due > now and 1 or 0
    value.due = value.state == 1 and value.due or 0
    call('HSET', queue.i, key, pack_item(value))
    index_item(queue, key, value)
  end

  -- A line without a head goes on with its first value. A buffered value without a lease before it goes where
  -- it would have gone at the end of the lease.
  function mend.n(queue, member)
    local stop = string.find(member, '\0', 1, true)
    local key = stop and sub(member, 1, stop - 1)
    local kinds = stop and #member >= stop + LINE_SIZE and sunpack('>I2', member, stop + LINE_SIZE - 1)
    if not kinds or #member < stop + LINE_SIZE + kinds then
      call('HSET', queue.n .. ':damaged', member, '')
      call('ZREM', queue.n, member)
      return 'aside'
    end
    local value, held = unpack_line(member, key), call('HEXISTS', new_index(queue, 'h'), key) == 1
    local head, leased = call('HGET', queue.i, key), call('HEXISTS', queue.l, key) == 1
    local outcome = 'kept'
    call('ZADD', queue.n, 'XX', 0, member)
    if head and sunpack('>d', head) == value.id then
      take_out(queue, key, value) -- It is the head already: a call that met damage has not ended.
    elseif not head and not held then
      local first = first_in_line(queue, key)
      if first then
        make_head(queue, key, first)
        outcome = 'gone' -- its head, or the buried item that held the key
      end
    elseif value.replaces and held then
      take_out(queue, key, value)
      value.replaces = false
      member = pack_line(key, value)
      call('ZADD', queue.n, 0, member)
    elseif value.replaces and not leased and call('ZSCORE', queue.n, member) then
      local old = unpack_item(head)
      value.attempt, value.history = old.attempt, old.history
      call('ZREM', new_index(queue, old.state == 1 and 't' or 'r'), place_member(old.place, key))
      call('ZREM', new_index(queue, 'u'), deadline_member(old.id, key))
      make_head(queue, key, value)
    end
    -- It may have become a head just now, or when it was met before.
    if call('ZSCORE', queue.n, member) and call('ZADD', new_index(queue, 'p'), value.id,
      line_member(key, value.id)) == 1 and held then
      call('HINCRBY', new_index(queue, 'h'), '\0', 1)
    end
    return outcome, key
  end

  -- Buried items and results. The age of a buried one is in its old index alone.
  local function mend_aside(queue, part, number, raw)
    local keys, errors = 0, 0
    if #raw >= 8 then
      keys, errors = sunpack('>I4I4', raw)
    end
    if #raw < 8 or not tonumber(number) or not readable(sub(raw, 9 + keys + errors)) then
      return set_record_aside(queue, part, number, raw)
    end
    local key, item = unpack_aside(raw)
    local outcome = part == 'd' and OUTCOMES[item.state]
    local age = part == 'b' and redis.pcall('ZSCORE', queue.b .. 't', number)
    local order = part == 'd' and item.due or type(age) == 'string' and age or item.id
    call('ZADD', new_index(queue, part .. 'o'), item.id, number)
    call('ZADD', new_index(queue, part .. 't'), order, number)
    call('ZADD', new_index(queue, part .. 'k'), 0, aside_member(key, item.id, part == 'd' and item.place, outcome))
    if outcome then
      call('ZADD', new_index(queue, part .. outcome), order, number)
    end
    return 'kept'
  end

  -- A buried item holds its key again, unless that has another head now.
  function mend.b(queue, number, raw)
    local outcome = mend_aside(queue, 'b', number, raw)
    local key, item = nil, nil
    if outcome == 'kept' then
      key, item = unpack_aside(raw)
    end
    if item and item.state == 1 and call('HEXISTS', queue.i, key) == 0 then
      call('HSET', new_index(queue, 'h'), key, number)
      call('HINCRBY', new_index(queue, 'h'), '\0', 0)
    elseif item and item.state == 1 then
      local keys, errors = sunpack('>I4I4', raw)
      item.state = 0
      call('HSET', queue.b, number, pack_aside(key, sub(raw, 9 + keys, 8 + keys + errors), item))
    end
    return outcome
  end

  function mend.d(queue, number, raw)
    return mend_aside(queue, 'd', number, raw)
  end

  -- {'repair_part', name, milliseconds, part, cursor}: goes through some records of a part. Answers where
  -- to go on ('' at the end), how many were set aside, and the keys of leases on nothing and of lines
  -- behind nothing.
  function verbs.repair_part(request)
    local queue, part, gone, counts = queues[request[2]], request[4], {}, { kept = 0, aside = 0, gone = 0 }
    queue.lined = true -- as far as is known
    local scan = part == 'n' and 'ZSCAN' or 'HSCAN'
    local cursor, found = unpack(call(scan, queue.base .. part, request[5], 'COUNT', CHUNK))
    for number = 1, #found, 2 do
      local outcome, key = mend[part](queue, found[number], found[number + 1])
      counts[outcome] = counts[outcome] + 1
      if outcome == 'gone' then
        gone[#gone + 1] = key or found[number]
      end
    end
    hold(queue, request[3])
    return { cursor ~= '0' and cursor or '', counts.aside, gone }
  end

  -- What a member of an index names: the part with its record, the name of that, and its key.
  local function named(index, member)
    if index == 'o' then
      return 'i', member, member
    elseif index == 'r' or index == 't' or index == 'u' then
      return 'i', sub(member, 9), sub(member, 9)
    end
    local stop = string.find(member, '\0', 1, true)
    return sub(index, 1, 1), text(sunpack('>I8', member, #member - 7)), sub(member, 1, stop - 1)
  end

  -- Whether a value is still in line, or has become the head of its key meanwhile.
  local function is_there(queue, member, id)
    local key = sub(member, 1, -10)
    return in_line(queue, key, id) or tonumber(item_id(queue, key) or nil) == id
  end

  -- {'repair_lost', name, milliseconds, index, cursor}: as `repair_part`, with the keys in an old index
  -- whose records are gone.
  function verbs.repair_lost(request)
    local queue, index, gone = queues[request[2]], request[4], {}
    queue.lined = true -- as far as is known
    local cursor, found = unpack(call('ZSCAN', queue.base .. index, request[5], 'COUNT', CHUNK))
    for number = 1, #found, 2 do
      local part, name, key = named(index, found[number])
      local there_still
      if part == 'p' then
        there_still = is_there(queue, found[number], tonumber(name))
      else
        there_still = call('HEXISTS', queue.base .. part, name) == 1
      end
      if not there_still then
        gone[#gone + 1] = key
      end
    end
    hold(queue, request[3])
    return { cursor ~= '0' and cursor or '', 0, gone }
  end

  -- {'repair_end', name}: the new indexes take their places.
  function verbs.repair_end(request)
    local queue = queues[request[2]]
    for _, part in ipairs(INDEXES) do
      local new, old = new_index(queue, part), queue.base .. part
      if call('EXISTS', new) == 1 then
        call('RENAME', new, old)
      else
        call('UNLINK', old)
      end
    end
    for _, pattern in ipairs(call('HKEYS', queue.x)) do
      call('UNLINK', queue.x .. ':' .. pattern)
    end
    call('UNLINK', queue.x)
    queue.lease_counts, queue.kept, queue.damaged, queue.changed = nil, false, false, true
    queue.lined = call('EXISTS', queue.n) == 1
    queue.holding = call('EXISTS', queue.h) == 1
    find_earliest(queue)
    queue.over = first_score(queue.d .. 't')
    end_edit(queue)
    return 1
  end
end
