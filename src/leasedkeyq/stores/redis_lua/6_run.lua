-- One batch: answered once, whatever is asked again.
local names, editing, recorded = input[11], input[12], serial > 0
local reply_key, SERIAL_SIZE = KEYS[1], 16

-- The answer of a claim is kept without the items, which are where they were.
local function packed(answers)
  local kept = {}
  for number, answer in ipairs(answers) do
    if requests[number][1] == 'claim' then
      local leases = {}
      for first = 1, #answer, 4 do
        leases[#leases + 1] = answer[first]
        leases[#leases + 1] = answer[first + 1]
        leases[#leases + 1] = answer[first + 2]
      end
      answer = leases
    end
    kept[number] = answer
  end
  return kept
end

local function unpacked(kept)
  local answers = {}
  for number, answer in ipairs(kept) do
    local request = requests[number]
    if request[1] == 'claim' then
      local items = {}
      for first = 1, #answer, 3 do
        local queue, key, lease = answer[first], answer[first + 1], answer[first + 2]
        local base = prefix .. ':{' .. escape(request[2][queue * 2 + 1] or '') .. '}:'
        -- A lease that has ended meanwhile is of no use to anybody.
        if queue < 0 or call('HGET', base .. 'l', key) == lease then
          local size = #items
          items[size + 1], items[size + 2], items[size + 3] = queue, key, lease
          items[size + 4] = queue < 0 and '' or call('HGET', base .. 'i', key)
        end
      end
      answer = items
    end
    answers[number] = answer
  end
  return answers
end

local function finish()
  flush()
  local changed = {}
  for _, queue in ipairs(opened) do
    if queue.changed then
      if queue.shrunk then
        forget(queue, math.max(20, #requests))
      end
      tidy(queue)
      redis.pcall('PUBLISH', queue.base .. 'w', client)
      changed[#changed + 1] = queue.name
    end
  end
  if store_numbers and store_numbers.changed then
    call('HSET', prefix .. ':m', 'id', store_numbers.id, 'fence', store_numbers.fence)
  end
  return changed
end

if recorded then
  local last = tonumber(call('GETRANGE', reply_key, 0, SERIAL_SIZE - 1)) or 0
  if last == serial then
    call('PEXPIRE', reply_key, lifetime)
    local kept = cmsgpack.unpack(string.sub(call('GET', reply_key), SERIAL_SIZE + 1))
    return { 'done', editing and kept[1] or unpacked(kept[1]), kept[2], kept[3] }
  elseif last > serial then
    return { 'old' }
  end
end

for _, name in ipairs(names) do
  local holder = call('GET', open(name).x)
  if holder and holder ~= edit_token then
    return { 'busy' }
  elseif not holder and edit_token ~= '' and not (requests[1] and requests[1][1] == 'lock') then
    return { 'lost' }
  end
end
local moves = CHUNK
for _, queue in ipairs(opened) do
  moves = moves and advance(queue, moves)
end
if not moves then
  return { 'more', {}, finish(), {} }
end

local answers = {}
journal = editing and {}
local number, before = 1, ''
while requests[number] do
  local request = requests[number]
  local verb = request[1]
  if verb ~= before then
    flush()
    before = verb
    if not verbs[verb] then
      define(verb)
    end
  end
  local count = verb == 'claim' and alike(number) or 1
  if count > 1 then
    claim_together(number, count, answers)
  else
    answers[number] = verbs[verb](request)
  end
  local answer = answers[number]
  number = number + count
  if editing and type(answer) == 'table' and type(answer[1]) == 'string' then
    undo_all()
    opened, dropped = {}, {}
    answers = { 'refused', number - 1, answer }
    break
  end
end
if editing then
  if answers[1] ~= 'refused' then
    keep_all()
  end
  journal = false
  for _, name in ipairs(names) do
    call('DEL', prefix .. ':{' .. escape(name) .. '}:x')
  end
end
local changed = finish()
if recorded then
  local kept = editing and answers or packed(answers)
  local record = string.format('%016.0f', serial) .. cmsgpack.pack({ kept, changed, dropped })
  call('SET', reply_key, record, 'PX', lifetime)
end
return { 'done', answers, changed, dropped }
