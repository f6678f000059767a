-- Standing claims. A worker that has found nothing leaves its claim at the queues; a put of a lone item
-- leases it to one of those that are left there, and publishes it to its worker, which has it then
-- without asking (see 0_lone.lua). Should that message be lost, the worker finds the lease when it
-- takes its claim back, which it does before it claims again.
local passed_over = 0 -- claims that are not made, as something was given meanwhile

if standing then
  local given

  -- {'take_back', worker, turn, queues, claims}: what its claim was given, or {}. If there is
  -- anything, so many claims behind this request are passed over: the worker has less room than it
  -- thought. It may be asked again.
  function verbs.take_back(request)
    local worker, turn, left = request[2], request[3], request[4]
    for number = 1, #left do
      call('HDEL', prefix .. ':{' .. tag(left[number]) .. '}:s', worker)
    end
    local raw = call('GET', prefix .. ':g:' .. worker)
    if not raw then
      return {}
    end
    local its_turn, name_size, key_size = sunpack('>dI4I4', raw)
    local name = sub(raw, 17, 16 + name_size)
    local key = sub(raw, 17 + name_size, 16 + name_size + key_size)
    local lease = sub(raw, 17 + name_size + key_size)
    local base = prefix .. ':{' .. tag(name) .. '}:'
    if its_turn ~= turn or call('HGET', base .. 'l', key) ~= lease then
      return {} -- or its lease has ended
    end
    given, passed_over = true, request[5]
    return { turn, name, key, lease, call('HGET', base .. 'i', key) }
  end

  -- {'leave', worker, turn, milliseconds, {queue, lease time, kinds, ...}, claims, seed of tokens}:
  -- leaves a claim, if so many claims before this request have found nothing. 1: it was left.
  function verbs.leave(request, answers, place)
    local worker, turn, milliseconds, parts = request[2], request[3], request[4], request[5]
    local seed = request[7]
    for number = place - request[6], place - 1 do
      if given or not answers[number] or answers[number][1] then
        return 0
      end
    end
    local left = {}
    for number = 1, #parts, 3 do
      left[#left + 1] = parts[number]
    end
    local till = now + milliseconds / 1000
    for number = 1, #parts, 3 do
      local key = prefix .. ':{' .. tag(parts[number]) .. '}:s'
      local record = { till, turn, parts[number + 1], parts[number + 2], seed, left }
      -- Without memory for it, the worker is woken as if it had left none.
      if type(redis.pcall('HSET', key, worker, cmsgpack.pack(record))) == 'table' then
        return 0
      end
      call('PEXPIRE', key, milliseconds)
    end
    return 1
  end
end
