-- The queues of the batch, an answer that was given before, and what is wanted.
local opened, queues = {}, {}

-- Damage: a key of another type, or a record that is not there, is known by what Lua says then. Answers
-- which queue is damaged: the one that was looked at last. Any other failure is the server's own, and ends
-- the script, as it would without this.
local touched = false
local DAMAGE = { 'WRONGTYPE', 'attempt to ', 'bad argument', 'too short', 'Bad data format', 'Missing bytes' }

local function damage(failure)
  local said = type(failure) == 'table' and failure.err or failure
  for number = 1, #DAMAGE do
    if string.find(said, DAMAGE[number], 1, true) then
      return { 'damaged', touched and touched.name or '', said }
    end
  end
  error(failure, 0)
end

-- The lowest score of an index: when the first of it comes due.
local function first_score(index)
  return tonumber(call('ZRANGE', index, 0, 0, 'WITHSCORES')[2] or huge)
end

-- The notes of a queue answer in one read what a call would have to ask of five keys: whether anything is
-- due, or old, or in line, or counted, and whether the queue is being edited. Notes that are missing, or
-- that the end of an edit has made void, are found out anew.
local function read_notes(queue)
  local notes = call('GET', queue.m)
  if notes then
    local lines
    queue.written, queue.earliest, queue.over, lines, queue.last, queue.edited = sunpack(NOTES, notes)
    queue.lined, queue.holding = lines % 2 == 1, lines >= 2
    queue.kept = sub(notes, NOTES_SIZE + 1, NOTES_SIZE + 1) == '+'
    if queue.edited > micros then
      queue.editor = sub(notes, NOTES_SIZE + (queue.kept and 2 or 1))
    elseif queue.edited > 0 then
      queue.edited, queue.noted = 0, true -- That edit took too long.
    end
  end
  if queue.earliest == -huge then
    queue.earliest = first_score(queue.t)
    queue.over = first_score(queue.d .. 't')
    queue.lined = call('EXISTS', queue.n) == 1
    queue.holding = call('EXISTS', queue.h) == 1
    queue.kept = call('EXISTS', queue.x) == 1
    queue.noted = notes and true or queue.noted
  end
end

-- A damaged queue must not fail the requests of others in the batch: it is marked, and each of its own
-- requests is answered with the damage.
for number = 1, #names do
  local name = names[number]
  local base = prefix .. ':{' .. tag(name) .. '}:'
  local queue = {
    name = name, base = base, i = base .. 'i', o = base .. 'o', r = base .. 'r', t = base .. 't',
    l = base .. 'l', m = base .. 'm', n = base .. 'n', p = base .. 'p', b = base .. 'b',
    d = base .. 'd', h = base .. 'h', x = base .. 'x', u = base .. 'u',
    written = 0, earliest = -huge, over = -huge, last = 0, edited = 0, editor = '',
    changed = false, noted = false, fresh = {}, gone = false, followed = false, kept = false, asked = false,
    lined = false, holding = false, appended = false, left_line = false, let_go = false, damaged = false,
  }
  opened[number], queues[name] = queue, queue
  touched = queue
  local sound, failure = pcall(read_notes, queue)
  queue.damaged = not sound and damage(failure)
end

-- A client that has lost an answer asks again with the same serial: its requests must not be applied twice,
-- so the answer that was kept is given. A lower serial is of a call that the client has given up.
if recorded then
  local last = tonumber(call('GETRANGE', reply_key, 0, SERIAL_SIZE - 1)) or 0
  if last > serial then
    return { 'old' }
  elseif last == serial then
    call('PEXPIRE', reply_key, lifetime)
    local kept = cmsgpack.unpack(sub(call('GET', reply_key), SERIAL_SIZE + 1))
    local answers = kept[1]
    for number, answer in ipairs(editing and {} or answers) do
      local request = requests[number]
      if request[1] == 'claim' then
        -- The answer of a claim is kept without the items, which are where they were. A lease that
        -- has ended meanwhile is of no use to anybody.
        local items = {}
        for first = 1, #answer, 3 do
          local at, key, lease = answer[first], answer[first + 1], answer[first + 2]
          if type(at) == 'string' then
            items = answer -- It found damage.
            break
          end
          local queue = queues[request[2][at * 2 + 1]]
          if at < 0 or call('HGET', queue.l, key) == lease then
            local size = #items
            items[size + 1], items[size + 2], items[size + 3] = at, key, lease
            items[size + 4] = at < 0 and '' or call('HGET', queue.i, key)
          end
        end
        answers[number] = items
      end
    end
    return { 'done', answers, kept[2] or names, kept[3] }
  end
end

local BEGINS = { lock = true, repair = true } -- requests with which an edit begins

-- Which parts of the script this batch needs. A script has no memory: the functions of each part are made
-- anew in every call, which takes longer than a small batch itself. So the files that follow make theirs
-- only if it is asked for here. Rare requests ask for nearly all of them.
local repairs = false
local puts, claims, urgent, acks, keeps, releases, changes, caps, counted, reads, parked
local moves, unique = editing, false
for number = 1, #requests do
  local request = requests[number]
  local verb = request[1]
  if verb == 'put' then
    puts = true
    moves = moves or request[7] or request[5] == 'buffer' -- with a delay, or behind a leased item
    unique = unique or request[11] > 0
  elseif verb == 'claim' then
    claims = true
    caps = caps or request[4] or request[7] or request[9] -- of a key, with caps, or the rest of one
    moves = moves or request[4] or (request[5] and now + request[5] <= now) -- due at once
    for _, lease_time in ipairs(request[11] or {}) do
      moves = moves or (lease_time and now + lease_time <= now)
    end
    counted = counted or request[7]
    urgent = urgent or request[10]
  elseif verb == 'ack' then
    acks = true
    keeps = keeps or request[6] > 0
  elseif verb == 'release' or verb == 'extend' then
    releases = true
  elseif verb == 'park' or verb == 'unpark' then
    parked = true
  elseif verb == 'bury' or verb == 'cancel' or verb == 'amend' or verb == 'requeue' or verb == 'discard'
    or verb == 'purge' or verb == 'cut_line' or verb == 'cut_buried' then
    changes = true
  elseif verb == 'examine' or string.sub(verb, 1, 6) == 'repair' then
    repairs, reads = true, true
  else
    reads = true
    counted = counted or (verb == 'ranks' and request[6])
  end
end
-- While an edit holds a queue, only its own calls get through; one whose hold has ended must not go on, as
-- the queue may have changed since it looked.
for number = 1, #opened do
  local queue = opened[number]
  if queue.editor ~= '' and queue.editor ~= edit_token then
    return { 'busy' }
  elseif queue.editor == '' and edit_token ~= '' and not (requests[1] and BEGINS[requests[1][1]]) then
    return { 'lost' }
  end
  moves = moves or queue.earliest <= now or queue.lined or queue.holding
  keeps = keeps or queue.over <= now
  counted = counted or queue.kept
end
urgent = urgent or reads
caps = caps or reads
moves = moves or releases or changes or reads
acks = acks or releases or changes
puts = puts or changes
keeps = keeps or changes or reads or unique
