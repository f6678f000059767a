-- What can be seen. An item is shown as {state, key, record, lease record or ''}; what has left its
-- key as {state, '', record, ''}.
if reads then
  local AVAILABLE, SCHEDULED, IN_FLIGHT, BUFFERED, BURIED, DONE = 0, 1, 2, 3, 4, 5

  local function live(queue, key)
    local raw = call('HGET', queue.i, key)
    if not raw then
      return nil
    end
    local lease = call('HGET', queue.l, key)
    if lease then
      return { IN_FLIGHT, key, raw, lease }
    end
    local state = string.byte(raw, STATE_AT)
    return { state == 1 and SCHEDULED or AVAILABLE, key, raw, '' }
  end

  -- The part of a queue that does not fit the others, if that can be seen without looking at all of it.
  -- Each item is available, leased or comes due; each part has an index or more that are as large.
  local function flaw(queue)
    local items, leased = call('HLEN', queue.i), call('HLEN', queue.l)
    local ready, timed = call('ZCARD', queue.r), call('ZCARD', queue.t)
    local order = call('ZCARD', queue.o)
    if order ~= items or items < ready + leased then
      return order < items and 'o' or 'i'
    end
    for part, indexes in pairs({ n = { 'p' }, b = { 'bo', 'bk', 'bt' }, d = { 'do', 'dk', 'dt' } }) do
      local size = call('HLEN', queue[part])
      for _, index in ipairs(indexes) do
        local listed = call('ZCARD', queue.base .. index)
        if listed ~= size then
          return listed < size and index or part
        end
      end
    end
    if call('HLEN', queue.n) ~= queue.buffered then
      return 'n'
    end
    for _, member in ipairs(call('ZRANGE', queue.t, 0, 4)) do
      local key, due = sub(member, 9), sunpack('>I8', member) > MIDDLE
      if call('HEXISTS', due and queue.i or queue.l, key) == 0 then
        return due and 'i' or 'l'
      end
    end
    if items > ready + leased + timed then
      return ready == 0 and 'r' or timed == 0 and 't' or 'l'
    end
    if timed == 0 and leased > 0 then
      for _, key in ipairs(call('HRANDFIELD', queue.l, 10)) do
        local _, _, expires = sunpack('>ddd', call('HGET', queue.l, key))
        if expires ~= 0 then
          return 't'
        end
      end
    end
    for _, member in ipairs(call('ZCARD', queue.u) == 0 and call('ZRANGE', queue.r, 0, 9) or {}) do
      local raw = there(call('HGET', queue.i, sub(member, 9)))
      if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
        return 'u'
      end
    end
    if call('ZCARD', queue.d .. 'f') + call('ZCARD', queue.d .. 'c') > call('HLEN', queue.d) then
      return 'd'
    end
    for _, number in ipairs(call('HRANDFIELD', queue.d, 10)) do
      local raw = call('HGET', queue.d, number)
      local keys, errors = sunpack('>I4I4', #raw >= 8 and raw or spack('>I4I4', 0, 0))
      local outcome = OUTCOMES[string.byte(raw, 8 + keys + errors + STATE_AT)]
      if outcome and not call('ZSCORE', queue.d .. outcome, number) then
        return 'd' .. outcome
      end
    end
    -- The oldest, the newest and any: most of those that are left over are among them.
    for _, keys in ipairs(ready == 0 and items > leased and {
      call('ZRANGE', queue.o, 0, 9), call('ZRANGE', queue.o, -10, -1), call('HRANDFIELD', queue.i, 30),
    } or {}) do
      for _, key in ipairs(keys) do
        local state = string.byte(call('HGET', queue.i, key), STATE_AT)
        if state == 0 and call('HEXISTS', queue.l, key) == 0 then
          return 'r'
        end
      end
    end
  end

  local function check(queue)
    if flaw(queue) then
      error('attempt to use a part that is missing')
    end
  end

  local function sweep(queue)
    local more = forget(queue, 500)
    more = forget_buckets(queue, 500) or more
    if more then
      return '0'
    end
    find_earliest(queue)
    local moment = min(queue.earliest, queue.over, next_token(queue) or huge)
    return moment < huge and text(max(moment - now, 0)) or ''
  end

  -- {'sweep', names, names}: the latter are those of queues whose keys are to be looked at as well.
  function verbs.sweep(request)
    local answer = {}
    for number, name in ipairs(request[2]) do
      answer[number] = sweep(at(name))
    end
    for _, name in ipairs(request[3]) do
      check(at(name))
    end
    return answer
  end

  function verbs.count(request)
    local answer = {}
    for number, name in ipairs(request[2]) do
      local queue = at(name)
      local ready, leased = call('ZCARD', queue.r), call('HLEN', queue.l)
      answer[number] = {
        ready + queue.buffered, call('HLEN', queue.i) - ready - leased, leased,
        call('HLEN', queue.b), results_of(queue, 't'), results_of(queue, 'f'), results_of(queue, 'c'),
      }
    end
    return answer
  end

  function verbs.heads(request)
    local answer = {}
    for number, name in ipairs(request[2]) do
      local queue = at(name)
      local member = call('ZRANGE', queue.r, 0, 0)[1]
      answer[number] = member and live(queue, string.sub(member, 9)) or false
    end
    return answer
  end

  -- The ranks of the items that a claim by urgency may lease in a queue, one after the other; and 1 if
  -- there was no time for all.
  function verbs.ranks(request)
    local queue, room, one, kinds = at(request[2]), request[3], request[4], set_of(request[5])
    local line, ranks = open_line(queue, room, one, kinds, request[6], request[7]), {}
    local in_time = look_further(line)
    while in_time and line.head do
      local rank = line.head.rank
      ranks[#ranks + 1] = { rank[1], text(rank[2]), text(rank[3]), text(rank[4]) }
      in_time = take_head(line)
    end
    return { ranks, in_time and 0 or 1 }
  end

  local function add_live(queue, key, answer)
    local found = live(queue, key)
    if found then
      answer[#answer + 1] = found
      local beside = found[1] == IN_FLIGHT and queue.buffered > 0 and call('HGET', queue.n, key)
      if beside then
        answer[#answer + 1] = { BUFFERED, key, beside, '' }
      end
    end
  end

  function verbs.look(request)
    local queue = at(request[2])
    local answer = {}
    for number, key in ipairs(request[3]) do
      answer[number] = {}
      add_live(queue, key, answer[number])
    end
    return answer
  end

  local function still_kept(raw)
    local _, item = unpack_aside(raw)
    return item.due > now
  end

  -- Items of some keys, in every state: some hundreds from a place on, and the place to go on from,
  -- '' at the end. A place is the number of a key, what to look at (live items, buried ones,
  -- results), and behind which member of an index.
  function verbs.keys(request)
    local queue, keys = at(request[2]), request[3]
    local number, part, behind = unpack(request[4])
    local parts = { { 'b', BURIED }, { 'd', DONE } }
    local answer, steps, most = {}, 0, 500
    while number <= #keys do
      if steps >= most then
        return { { number, part, behind }, answer }
      end
      local key, full = keys[number], false
      steps = steps + 1
      if part == 0 then
        add_live(queue, key, answer)
      else
        local name, state = unpack(parts[part])
        local start = behind == '' and '[' .. key .. '\0' or '(' .. behind
        local members = call('ZRANGEBYLEX', queue[name] .. 'k', start, '(' .. key .. '\1', 'LIMIT', 0, most)
        for _, member in ipairs(members) do
          local raw = call('HGET', queue[name], string.sub(member, #key + 2))
          if raw and (state == BURIED or still_kept(raw)) then
            answer[#answer + 1] = { state, '', raw, '' }
          end
        end
        steps = steps + #members
        full, behind = #members == most, members[#members] or ''
      end
      if not full then
        part, behind = (part + 1) % 3, ''
        number = part == 0 and number + 1 or number
      end
    end
    return { '', answer }
  end

  function verbs.results(request)
    local queue = at(request[2])
    local answer = {}
    for number, id in ipairs(request[3]) do
      local raw = call('HGET', queue.d, id)
      answer[number] = raw and still_kept(raw) and { DONE, '', raw, '' } or false
    end
    return answer
  end

  local function show_live(queue, key, states, prefixed)
    if not prefixed(key) then
      return nil
    end
    local found = live(queue, key)
    return found and states[found[1]] and found
  end

  local function show_aside(queue, part, state, number, prefixed)
    local raw = call('HGET', queue[part], number)
    local key = unpack_aside(raw)
    if prefixed(key) and (state ~= DONE or still_kept(raw)) then
      return { state, '', raw, '' }
    end
    return nil
  end

  -- The keys of the items in some states, and of others that are in the same index, once each.
  local function keys_in(queue, states)
    local keys, seen = {}, {}
    local function add(key)
      if not seen[key] then
        seen[key], keys[#keys + 1] = true, key
      end
    end
    for state, index in pairs({ [AVAILABLE] = queue.r, [SCHEDULED] = queue.t }) do
      for _, member in ipairs(states[state] and call('ZRANGE', index, 0, -1) or {}) do
        add(sub(member, 9))
      end
    end
    for _, key in ipairs(states[IN_FLIGHT] and call('HKEYS', queue.l) or {}) do
      add(key)
    end
    return keys
  end

  -- Items by id behind `after`: what was found among the next few hundred, and where to go on; ''
  -- at the end.
  function verbs.browse(request)
    local queue, states, start, after, limit = at(request[2]), {}, request[4], request[5], request[6]
    if after == 0 then
      check(queue) -- What is missing in an index would be missing in the list, and nobody would know.
    end
    for _, state in ipairs(request[3]) do
      states[state] = true
    end
    local function prefixed(key)
      return start == '' or string.sub(key, 1, #start) == start
    end
    local most = max(min(limit, 500), 100)
    local found, horizon = {}, huge
    local function add_all(index, show)
      local entries = call('ZRANGEBYSCORE', index, '(' .. text(after), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
      if #entries == 2 * most then
        horizon = min(horizon, tonumber(entries[#entries]))
      end
      for number = 1, #entries, 2 do
        local shown = show(entries[number])
        if shown then
          found[#found + 1] = { tonumber(entries[number + 1]), shown }
        end
      end
    end
    -- Of the keys of an index, those with the lowest ids behind `after`.
    local function add_few(keys)
      local shown_few = {}
      for number = 1, #keys do
        local shown = show_live(queue, keys[number], states, prefixed)
        local id = shown and sunpack('>d', shown[3])
        if shown and id > after then
          shown_few[#shown_few + 1] = { id, shown }
        end
      end
      table.sort(shown_few, function(one, other)
        return one[1] < other[1]
      end)
      if #shown_few > most then
        horizon = min(horizon, shown_few[most][1])
      end
      for number = 1, min(#shown_few, most) do
        found[#found + 1] = shown_few[number]
      end
    end
    if states[AVAILABLE] or states[SCHEDULED] or states[IN_FLIGHT] then
      -- If they are few, each page looks at all of them; else the pages together look at all items.
      local few = (states[AVAILABLE] and call('ZCARD', queue.r) or 0)
        + (states[SCHEDULED] and call('ZCARD', queue.t) or 0)
        + (states[IN_FLIGHT] and call('HLEN', queue.l) or 0)
      if few <= 4 * CHUNK and few * (math.floor(few / most) + 1) < call('ZCARD', queue.o) then
        add_few(keys_in(queue, states))
      else
        add_all(queue.o, function(key)
          return show_live(queue, key, states, prefixed)
        end)
      end
    end
    if states[BUFFERED] then
      add_all(queue.p, function(key)
        return prefixed(key) and { BUFFERED, key, there(call('HGET', queue.n, key)), '' }
      end)
    end
    for part, state in pairs({ b = BURIED, d = DONE }) do
      if states[state] then
        add_all(queue[part] .. 'o', function(number)
          return show_aside(queue, part, state, number, prefixed)
        end)
      end
    end
    table.sort(found, function(one, other)
      return one[1] < other[1]
    end)
    local answer = {}
    for _, entry in ipairs(found) do
      if entry[1] <= horizon then
        answer[#answer + 1] = entry[2]
      end
    end
    return { horizon < huge and text(horizon) or '', answer }
  end

  if repairs then
    -- {'examine', name}: what is damaged, as {part, the type that it has, or ''}.
    local TYPES = {
      i = 'hash', l = 'hash', n = 'hash', b = 'hash', d = 'hash', c = 'hash', x = 'hash',
      o = 'zset', r = 'zset',
      t = 'zset', p = 'zset', bo = 'zset', bk = 'zset', bt = 'zset', ['do'] = 'zset', dk = 'zset', dt = 'zset',
      df = 'zset', dc = 'zset',
      cf = 'zset', cn = 'zset', u = 'zset', m = 'string', s = 'set',
    }

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

    function verbs.examine(request)
      local queue = queues[request[2]]
      local found = strangers(queue)
      if not found[1] then
        local part = flaw(queue)
        found[1] = part and { part, '' }
      end
      return found
    end

    -- Repair. The records of items, leases, buffered values, buried items and results say where each of
    -- them belongs: the indexes are made anew from them, under other names, while nobody else may change
    -- the queue, and then take the place of the old ones. What is no record is set aside.
    local INDEXES = { 'o', 'r', 't', 'u', 'p', 'bo', 'bk', 'bt', 'do', 'dk', 'dt', 'df', 'dc' }

    local function new_index(queue, part)
      return queue.base .. '~' .. part
    end

    local function hold(queue, milliseconds)
      queue.edited, queue.editor, queue.noted = micros + milliseconds * 1000, edit_token, true
      queue.earliest = -huge -- Whoever comes next has to look.
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

    local function index_item(queue, key, item)
      call('ZADD', new_index(queue, 'o'), item.id, key)
      if call('HEXISTS', queue.l, key) == 0 then
        local due = item.state == 1
        call('ZADD', new_index(queue, due and 't' or 'r'), due and item.due or -item.priority,
          place_member(item.place, key))
        if not due and item.deadline ~= 0 then
          call('ZADD', new_index(queue, 'u'), item.deadline, hurried_member(item.id, key))
        end
      end
    end

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

    function mend.i(queue, key, raw)
      if not readable(raw) then
        return set_record_aside(queue, 'i', key, raw)
      end
      index_item(queue, key, unpack_item(raw))
      return 'kept'
    end

    -- Without a lease beside it a buffered value goes where it would have gone at the end of the lease.
    function mend.n(queue, key, raw)
      if not readable(raw) then
        return set_record_aside(queue, 'n', key, raw)
      elseif call('HEXISTS', queue.l, key) == 1 then
        call('ZADD', new_index(queue, 'p'), sunpack('>d', raw), key)
        return 'kept'
      end
      local item, before = unpack_item(raw), call('HGET', queue.i, key)
      if before then
        local old = unpack_item(before)
        item.attempt, item.history = old.attempt, old.history
        call('ZREM', new_index(queue, old.state == 1 and 't' or 'r'), place_member(old.place, key))
        call('ZREM', new_index(queue, 'u'), hurried_member(old.id, key))
      end
      item.place, item.state = next_number(queue), item.due > now and 1 or 0
      item.due = item.state == 1 and item.due or 0
      call('HSET', queue.i, key, pack_item(item))
      call('HDEL', queue.n, key)
      index_item(queue, key, item)
      return 'kept'
    end

    local function mend_aside(queue, part, number, raw)
      local keys, errors = 0, 0
      if #raw >= 8 then
        keys, errors = sunpack('>I4I4', raw)
      end
      if #raw < 8 or not tonumber(number) or not readable(sub(raw, 9 + keys + errors)) then
        return set_record_aside(queue, part, number, raw)
      end
      local key, item = unpack_aside(raw)
      local age = part == 'b' and redis.pcall('ZSCORE', queue.b .. 't', number)
      local order = part == 'd' and item.due or type(age) == 'string' and age or item.id
      call('ZADD', new_index(queue, part .. 'o'), item.id, number)
      call('ZADD', new_index(queue, part .. 't'), order, number)
      call('ZADD', new_index(queue, part .. 'k'), 0, key .. '\0' .. number)
      if part == 'd' and OUTCOMES[item.state] then
        call('ZADD', new_index(queue, part .. OUTCOMES[item.state]), order, number)
      end
      return 'kept'
    end

    function mend.b(queue, number, raw)
      return mend_aside(queue, 'b', number, raw)
    end

    function mend.d(queue, number, raw)
      return mend_aside(queue, 'd', number, raw)
    end

    -- {'repair_part', name, milliseconds, part, cursor}: goes through some records of a part. Answers where
    -- to go on ('' at the end), how many were set aside, and the keys of leases on nothing.
    function verbs.repair_part(request)
      local queue, part, gone, counts = queues[request[2]], request[4], {}, { kept = 0, aside = 0, gone = 0 }
      local cursor, found = unpack(call('HSCAN', queue.base .. part, request[5], 'COUNT', CHUNK))
      for number = 1, #found, 2 do
        local outcome = mend[part](queue, found[number], found[number + 1])
        counts[outcome] = counts[outcome] + 1
        if outcome == 'gone' then
          gone[#gone + 1] = found[number]
        end
      end
      hold(queue, request[3])
      return { cursor ~= '0' and cursor or '', counts.aside, gone }
    end

    -- What a member of an index names: the part with its record, the name of that, and its key.
    local function named(index, member)
      if index == 'o' or index == 'p' then
        return index == 'o' and 'i' or 'n', member, member
      elseif index == 'r' or index == 't' or index == 'u' then
        return 'i', sub(member, 9), sub(member, 9)
      end
      local at = #member
      while at > 1 and string.byte(member, at) ~= 0 do
        at = at - 1
      end
      return sub(index, 1, 1), sub(member, at + 1), sub(member, 1, at - 1)
    end

    -- {'repair_lost', name, milliseconds, index, cursor}: as `repair_part`, with the keys in an old index
    -- whose records are gone.
    function verbs.repair_lost(request)
      local queue, index, gone = queues[request[2]], request[4], {}
      local cursor, found = unpack(call('ZSCAN', queue.base .. index, request[5], 'COUNT', CHUNK))
      for number = 1, #found, 2 do
        local part, name, key = named(index, found[number])
        -- A buffered value may have become an item meanwhile.
        if call('HEXISTS', queue.base .. part, name) == 0
          and (part ~= 'n' or call('ZSCORE', queue.p, name) ~= item_id(queue, name)) then
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
      queue.tally, queue.kept, queue.damaged, queue.changed = nil, false, false, true
      queue.buffered = call('HLEN', queue.n)
      find_earliest(queue)
      queue.over = tonumber(call('ZRANGE', queue.d .. 't', 0, 0, 'WITHSCORES')[2] or huge)
      end_edit(queue)
      return 1
    end
  end

  -- Nobody else changes the queue until it is unlocked, or until so many milliseconds have passed.
  function verbs.lock(request)
    local queue = at(request[2])
    queue.edited, queue.editor, queue.noted = micros + request[3] * 1000, edit_token, true
    return now_text
  end

  function verbs.unlock(request)
    end_edit(at(request[2]))
    return 1
  end
end
