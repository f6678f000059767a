-- Applies the requests of the batch, in their order.
--
-- What a call has changed is noted and told at its end, once for each queue. A queue that has results to
-- forget forgets at least as many as a batch can add, so that they do not pile up where no sweep comes.
local function finish()
  flush()
  local changed = {}
  for number = 1, #opened do
    local queue = opened[number]
    if queue.changed then
      if queue.over <= now then
        touched = queue
        local sound, failure = pcall(forget, queue, max(20, #requests))
        queue.damaged = not sound and damage(failure) -- The next sweep tells of it.
      end
      -- A user of the server who may not publish can still change a queue: the watchers look on their own.
      redis.pcall('PUBLISH', queue.base .. 'w', client)
      changed[#changed + 1] = queue.name
    end
    -- Whether the last line has ended, or the last key that was held was let go.
    if queue.left_line and queue.lined and call('EXISTS', queue.n) == 0 then
      queue.lined, queue.noted = false, true
    end
    if queue.let_go and call('HLEN', queue.h) <= 1 then
      call('DEL', queue.h)
      queue.holding, queue.noted = false, true
    end
    if queue.noted or (queue.changed and queue.written + RENEWED_AFTER < micros) then
      -- A queue that has not changed does without new notes if there is no memory for them.
      local write = (queue.changed or queue.editor ~= '') and call or redis.pcall
      local notes = spack(NOTES, micros, queue.earliest, queue.over,
        (queue.lined and 1 or 0) + (queue.holding and 2 or 0), queue.last, queue.edited)
      write('SET', queue.m, notes .. (queue.kept and '+' or '') .. queue.editor, 'EX', NOTES_LIFETIME)
    end
    if queue.lease_counts then
      keep_lease_counts(queue) -- behind the notes: without a '+' there, no call looks at it
    end
  end
  if last_number and last_number ~= written_number then
    call('SET', prefix .. ':m', last_number)
  end
  return changed
end

-- First the items that have come due, as a request may ask for one of them. The server does nothing else
-- while a script runs: after so many moves the client is told that there is more to do, and calls again.
if moves and not repairs then
  local left = CHUNK
  for number = 1, #opened do
    local queue = opened[number]
    if left and not queue.damaged then
      touched = queue
      local sound, rest = pcall(advance, queue, left)
      if sound then
        left = rest
      else
        queue.damaged = damage(rest)
      end
    end
  end
  if not left then
    return { 'more', {}, finish() }
  end
end

-- A put that is unique asks for the newest result of a key: those whose time is over must be gone by then.
if unique then
  for number = 1, #opened do
    local queue = opened[number]
    if queue.over <= now and not queue.damaged then
      touched = queue
      local sound, more = pcall(forget, queue, CHUNK)
      if not sound then
        queue.damaged = damage(more)
      elseif more then
        return { 'more', {}, finish() }
      end
    end
  end
end

-- The leases that match the caps of the batch are counted before it, in steps for the same reason.
if counted then
  local left = CHUNK
  for number = 1, #requests do
    local request = requests[number]
    local limits = request[1] == 'claim' and request[7] or request[1] == 'ranks' and request[6]
    if left then
      local sound, rest = pcall(count_leases, limits or {}, left)
      left = not sound and damage(rest) and left or rest
    end
  end
  if not left then
    return { 'more', {}, finish() }
  end
end

-- The requests of an edit are applied all or not at all. A script cannot be rolled back, so an edit writes
-- down what it changes, and its changes are undone from that journal if a request is refused.
local answers = {}
journal = editing and {}
local number, before = 1, ''
local first_of_run = 1 -- requests of one verb, whose writes are made together

-- The writes of a run may meet damage after their requests were answered: those answers change.
local function flush_run()
  flush()
  for place_in = first_of_run, number - 1 do
    local request = requests[place_in]
    local queue = (request[1] == 'put' or request[1] == 'ack') and queues[request[2]]
    if queue and queue.damaged then
      answers[place_in] = queue.damaged
    end
  end
end

while requests[number] do
  local request = requests[number]
  local verb = request[1]
  -- The writes of a run wait until another verb comes, which may read them.
  if verb ~= before then
    if before ~= '' then
      flush_run()
    end
    before, first_of_run = verb, number
  end
  local count = 1
  -- The worker was given an item by its parked claim: the claims that come with its next call are not made.
  if verb == 'claim' and passed_over > 0 then
    answers[number], passed_over = {}, passed_over - 1
  else
    count = verb == 'claim' and requests[number + 1] and alike(number) or 1
    local sound, answer
    if count > 1 then
      sound, answer = pcall(claim_together, number, count, answers)
    else
      sound, answer = pcall(verbs[verb], request, answers, number)
    end
    if not sound then
      answer = damage(answer)
      for place_in = number, number + count - 1 do
        answers[place_in] = answer
      end
    elseif count == 1 then
      answers[number] = answer
    end
  end
  local answer = answers[number]
  number = number + count
  if editing and type(answer) == 'table' and type(answer[1]) == 'string' then
    answers = { 'refused', number - 1, answer }
    break
  elseif type(answer) == 'table' and (answer[1] == 'long' or answer[1] == 'stale') then
    break -- This takes other calls. The client comes with the requests behind it when they have been made.
  end
end

if not editing then
  flush_run()
else
  -- The last change is undone first: a key may have changed more than once. What a purge has renamed is
  -- named as before, or unlinked if the edit holds.
  local refused = answers[1] == 'refused'
  for entry = #journal, 1, -1 do
    local kind, key, name, old = unpack(journal[entry])
    if kind == 'k' then
      call('UNLINK', refused and key or name)
      if refused then
        call('RENAME', name, key)
      end
    elseif refused and kind == 'h' then
      if old then
        call('HSET', key, name, old)
      else
        call('HDEL', key, name)
      end
    elseif refused then
      if old then
        call('ZADD', key, old, name)
      else
        call('ZREM', key, name)
      end
    end
  end
  journal = false
  if refused then
    dropped = {}
  end
  for entry = 1, #opened do
    local queue = opened[entry]
    end_edit(queue)
    if refused then
      queue.lease_counts = nil -- Nothing else has changed it: all that was due had moved with the lock.
      queue.earliest = -huge -- The next call has to look.
    end
  end
end

-- The answer is kept without the records of the claimed items, which the server has anyway.
local changed = finish()
if recorded then
  local kept = answers
  if claims and not editing then
    kept = {}
    for place_in, answer in ipairs(answers) do
      if requests[place_in][1] == 'claim' and type(answer[1]) ~= 'string' then
        local leases = {}
        for first = 1, #answer, 4 do
          local size = #leases
          leases[size + 1], leases[size + 2] = answer[first], answer[first + 1]
          leases[size + 3] = answer[first + 2]
        end
        answer = leases
      end
      kept[place_in] = answer
    end
  end
  keep_answer({ kept, changed, dropped }, changed[1])
end
return { 'done', answers, changed, dropped[1] and dropped or nil }
