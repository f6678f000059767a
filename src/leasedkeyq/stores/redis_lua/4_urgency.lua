-- Claims by urgency. A line is what a claim may lease in one queue, from its `head` on.
local open_line, look_further, take_head

if urgent then
  -- `limits` are the caps of the claim, and `urgency` is {priority, deadline or false, steps}.
  function open_line(queue, room, one, kinds, limits, urgency, start)
    return {
      queue = queue, room = room, one = one, kinds = kinds, urgency = urgency,
      rooms = limits and rooms_of(queue, limits), members = {}, head = false,
      page = {}, place = 0, size = min(room + 4, 200), ended = false,
      from = start and start[2] ~= '' and rank_behind(queue, start[2], start[3]) or 0,
    }
  end

  -- {0 past its deadline or 1, its effective priority, when it was put, its id}: the lower, the sooner.
  local function rank_of(urgency, raw)
    local id, put_at, _, _, _, due = sunpack(ITEM, raw)
    local priority, deadline, steps = urgency[1], urgency[2], urgency[3]
    if due == 0 then
      due = deadline and put_at + deadline
    end
    if not due or not (deadline or steps[1]) then
      return { 1, priority, put_at, id }
    elseif due <= now or due <= put_at then
      return { 0, priority, put_at, id }
    end
    local share, up = (due - now) / (due - put_at), 0
    for _, step in ipairs(steps) do
      if share <= step[1] then
        up = max(up, step[2])
      end
    end
    return { 1, priority - up, put_at, id }
  end

  local function is_next(line, member, key, raw)
    if (line.kinds and not line.kinds[kind_of(raw)])
      or (line.rooms and not room_for(line.queue, line.rooms, key)) then
      return false
    end
    line.head = { key = key, raw = raw, member = member, rank = rank_of(line.urgency, raw) }
    return true
  end

  local function look_at_key(line)
    local queue, key = line.queue, line.one
    local raw = call('HGET', queue.i, key)
    if raw and call('HEXISTS', queue.l, key) == 0 then
      local item = unpack_item(raw)
      if item.state == 0 then
        is_next(line, place_member(item.place, key), key, raw)
      end
    end
    line.room = 1
  end

  -- Finds the next item of a line. False: there was no time for it.
  function look_further(line)
    line.head = false
    if line.room <= 0 then
      return true
    elseif line.one then
      look_at_key(line)
      return true
    end
    while not (line.rooms and line.rooms.over) do
      local member = line.page[line.place + 1]
      if member then
        line.place = line.place + 1
        local key = sub(member, 9)
        if is_next(line, member, key, call('HGET', line.queue.i, key)) then
          return true
        end
        passing = passing - 1
      elseif line.ended then
        return true
      elseif passing <= 0 then
        return false
      else
        line.from, line.place = line.from + #line.page, 0
        line.page = call('ZRANGE', line.queue.r, line.from, line.from + line.size - 1)
        line.ended, line.size = #line.page < line.size, 200
      end
    end
    return true
  end

  -- Takes the head out of a line, and finds the next one. False: there was no time for that.
  function take_head(line)
    local head = line.head
    if line.rooms then
      take_room(line.queue, line.rooms, head.key)
    end
    line.members[#line.members + 1] = head.member
    line.room = line.room - 1
    passing = passing - 1
    return look_further(line)
  end

  local function sooner(one, other)
    for number = 1, 4 do
      if one[number] ~= other[number] then
        return one[number] < other[number]
      end
    end
    return false
  end

  -- The number of the line whose turn it is.
  local function next_line(lines)
    local best
    for number, line in ipairs(lines) do
      if line.head and (not best or sooner(line.head.rank, lines[best].head.rank)) then
        best = number
      end
    end
    return best
  end

  -- The last item of a line that need not be looked at again.
  local function last_of(line)
    local rank = line.from + line.place - (line.head and 2 or 1)
    local member = rank >= 0 and call('ZRANGE', line.queue.r, rank, rank)[1]
    if not member then
      return '', ''
    end
    return call('ZSCORE', line.queue.r, member), member
  end

  -- As `verbs.claim`, but the queues take turns: the one is next whose next item is the most urgent.
  function claim_by_urgency(request)
    local limit, kinds, starts = request[3], set_of(request[6]), request[9] or {}
    local lines, in_time = {}, true
    for number = 1, #request[2] / 2 do
      local queue, room = at(request[2][2 * number - 1]), min(request[2][2 * number], limit)
      local line = open_line(queue, room, request[4], kinds, request[7], request[10][number],
        starts[number])
      lines[number] = line
      in_time = in_time and look_further(line)
    end
    local turns = {} -- {number of a line, keys, records}: what follows each other in one queue
    local count, best = 0, in_time and next_line(lines)
    while best and count < limit do
      local line, turn = lines[best], turns[#turns]
      if not turn or turn[1] ~= best then
        turn = { best, {}, {} }
        turns[#turns + 1] = turn
      end
      turn[2][#turn[2] + 1], turn[3][#turn[3] + 1] = line.head.key, line.head.raw
      count = count + 1
      in_time = take_head(line)
      best = in_time and next_line(lines)
    end
    local answer = {}
    local function add(number, ...)
      local size = #answer
      answer[size + 1], answer[size + 2], answer[size + 3], answer[size + 4] = number, ...
    end
    for _, turn in ipairs(turns) do
      local leases = {}
      lease_all(lines[turn[1]].queue, turn[2], expiry(request, turn[1]), request[8], leases)
      for number, key in ipairs(turn[2]) do
        add(turn[1] - 1, key, leases[number], turn[3][number])
      end
    end
    for number, line in ipairs(lines) do
      if not in_time and count < limit then
        local score, member = last_of(line)
        add(-number, score, member, '')
      end
      call_many('ZREM', line.queue.r, line.members)
      if line.rooms and line.members[1] then
        keep_buckets(line.queue, line.rooms)
      end
    end
    return answer
  end
end
