-- Records, keys and writes. The files of this folder are joined in the order of their names and run
-- as one script: one call applies one batch. The meaning is that of leasedkeyq/state.py.
--
-- The keys of a queue (all in one slot):
--   i   hash  key -> item record            o   zset  key by id
--   r   zset  place..key by -priority       t   zset  turn..key by the moment at which it is due
--   l   hash  key -> lease record           m   hash  the counters of the queue
--   n   hash  key -> buffered item record   p   zset  key by the id of the buffered item
--   b   hash  id -> buried record           bo  zset  id by id   bk  zset  key..id   bt  zset  id by age
--   d   hash  id -> result record           do  zset  id by id   dk  zset  key..id   dt  zset  id by due
--   c   hash  bucket -> its tokens          cf  zset  bucket by the moment at which it is full
--   x   string  who edits the queue
local call = redis.call
local spack, sunpack = struct.pack, struct.unpack
local MIDDLE = 2 ^ 52 -- makes numbers below and above zero sort as unsigned ones
local CHUNK = 1000 -- arguments of one command, entries of one step
local ITEM = '>dddddI4BI2I4'
local ITEM_SIZE = 51

local input = cmsgpack.unpack(ARGV[1])
local prefix, client, serial = input[1], input[2], input[3]
local max_history, max_buried = input[5], input[6]
local edit_token, clustered, lifetime = input[7], input[8], input[9]
local requests = input[10]

local time = call('TIME')
local micros = (tonumber(time[1]) - 1767225600) * 1000000 + tonumber(time[2])
local now = input[4] or tonumber(time[1]) + tonumber(time[2]) / 1000000

local function text(number)
  return string.format('%.17g', number)
end
local now_text = text(now)

local function pack_item(item)
  return spack(ITEM, item.id, item.put_at, item.priority, item.place, item.due, item.attempt,
    item.state, #item.kind, #item.history) .. item.kind .. item.history .. item.value
end

local function unpack_item(raw)
  local item = {}
  local kinds, past
  item.id, item.put_at, item.priority, item.place, item.due, item.attempt, item.state, kinds, past =
    sunpack(ITEM, raw)
  local at = ITEM_SIZE + kinds
  item.kind = string.sub(raw, ITEM_SIZE + 1, at)
  item.history = string.sub(raw, at + 1, at + past)
  item.value = string.sub(raw, at + past + 1)
  return item
end

-- What has left its key: buried items and results.
local function pack_aside(key, error, item)
  return spack('>I4I4', #key, #error) .. key .. error .. pack_item(item)
end

local function unpack_aside(raw)
  local keys, errors = sunpack('>I4I4', raw)
  local at = 8 + keys
  return string.sub(raw, 9, at), unpack_item(string.sub(raw, at + errors + 1))
end

local function pack_lease(fence, expires, token)
  return spack('>ddd', fence, now, expires) .. token
end

local function place_member(place, key)
  return spack('>I8', MIDDLE + place) .. key
end

local function escape(name)
  if name == '' then
    return '%' -- Empty braces say nothing about a slot.
  end
  return (string.gsub(name, '[{}%%]', { ['{'] = '%7B', ['}'] = '%7D', ['%'] = '%25' }))
end

-- Writes. While an edit is applied, each is noted with what it replaces.
local journal = false

local function hset(hash, field, value)
  if journal then
    journal[#journal + 1] = { 'h', hash, field, call('HGET', hash, field) }
  end
  call('HSET', hash, field, value)
end

local function hdel(hash, field)
  if journal then
    journal[#journal + 1] = { 'h', hash, field, call('HGET', hash, field) }
  end
  call('HDEL', hash, field)
end

local function zadd(set, score, member)
  if journal then
    journal[#journal + 1] = { 'z', set, member, call('ZSCORE', set, member) }
  end
  call('ZADD', set, score, member)
end

local function zrem(set, member)
  if journal then
    journal[#journal + 1] = { 'z', set, member, call('ZSCORE', set, member) }
  end
  call('ZREM', set, member)
end

local function remove_all(key)
  if journal then
    local aside = key .. '~' .. #journal
    if call('EXISTS', key) == 1 then
      call('RENAME', key, aside)
      journal[#journal + 1] = { 'k', key, aside }
    end
  else
    call('UNLINK', key)
  end
end

local function undo_all()
  for number = #journal, 1, -1 do
    local kind, key, name, old = unpack(journal[number])
    if kind == 'k' then
      call('UNLINK', key)
      call('RENAME', name, key)
    elseif kind == 'h' then
      if old then
        call('HSET', key, name, old)
      else
        call('HDEL', key, name)
      end
    elseif old then
      call('ZADD', key, old, name)
    else
      call('ZREM', key, name)
    end
  end
end

local function keep_all()
  for _, entry in ipairs(journal) do
    if entry[1] == 'k' then
      call('UNLINK', entry[3])
    end
  end
end

-- Commands with any number of arguments, in steps that fit on Lua's stack.
local function call_many(command, key, arguments)
  for first = 1, #arguments, CHUNK do
    local last = math.min(first + CHUNK - 1, #arguments)
    call(command, key, unpack(arguments, first, last))
  end
end
