-- The files of this folder are joined in the order of their names and run as one script: one call
-- applies one batch, and is answered once, whatever is asked again. The meaning is that of
-- leasedkeyq/model/state.py.
--
-- The keys of a queue (all in one slot):
--   i   hash  key -> item record            o   zset  key by id
--   r   zset  place..key by -priority       t   zset  turn..key by the moment at which it is due
--   l   hash  key -> lease record           m   string  notes on the queue, see below
--   n   hash  key -> buffered item record   p   zset  key by the id of the buffered item
--   b   hash  id -> buried record           bo  zset  id by id   bk  zset  key..id   bt  zset  id by age
--   d   hash  id -> result record           do  zset  id by id   dk  zset  key..id   dt  zset  id by due
--   df  zset  id by due, of the results that failed, and   dc   of those that were cancelled
--   c   hash  bucket -> its tokens          cf  zset  bucket by the moment at which it is full
--   s   set   workers that have parked a claim, see 5_parked_claims.lua
--   x   hash  pattern -> count of leases    x:  and a pattern: see 1_tally.lua
--   u   zset  id..key by deadline, of the available items that have one of their own
--
-- Most calls are short, and every command, function and table counts. So what is asked most is tried
-- first, without functions; then it is found out what is wanted, and functions are made for that only;
-- and what would have to be asked about a queue in every call is noted in one place.
local call = redis.call
local spack, sunpack = struct.pack, struct.unpack
local sub, max, min, huge = string.sub, math.max, math.min, math.huge
local CHUNK = 1000 -- arguments of one command, entries of one step
local SERIAL_SIZE = 16

local input = cmsgpack.unpack(ARGV[1])
local prefix, client, serial = input[1], input[2], input[3]
local edit_token, clustered, lifetime = input[7], input[8], input[9]
local requests, names, editing = input[10], input[11], input[12]
local recorded, reply_key = serial > 0, KEYS[1]

local time = call('TIME')
local micros = (time[1] - 1767225600) * 1000000 + time[2]
local now = input[4] or time[1] + time[2] / 1000000

-- Notes: when they were written; the moment before which nothing comes due, and that before which no
-- result is to be forgotten; the count of buffered items; the last number given, on a cluster; until
-- when the queue is edited; then a '+' if leases are counted by pattern, and who edits. Notes last for
-- a day. Without them one has to look.
local NOTES = '>dddddd'
local NOTES_SIZE = 48
local NOTES_LIFETIME = 86400
local RENEWED_AFTER = 43200 * 1000000 -- microseconds

local ITEM = '>ddddddI4BI2I4' -- then the kind, the history and the value
local ITEM_SIZE = 59
local DEADLINE_AT = 41
local NO_DEADLINE = spack('>d', 0)
local STATE_AT = 53
local KIND_AT = 54 -- where it says how long the kind is
-- The record of a result has its outcome in the place of the state: 0 completed, 1 failed, 2 cancelled.
-- Those that did not complete have an index of their own, so that they are counted without a look.
local OUTCOMES = { 'f', 'c' }
local MIDDLE = 2 ^ 52 -- makes numbers below and above zero sort as unsigned ones

-- Keeps the answer for whoever asks again. One that has changed nothing can be found again: it is not
-- kept if there is no memory for it.
local function keep_answer(answer, changed)
  local record = string.format('%016.0f', serial) .. cmsgpack.pack(answer)
  if not changed then
    local failure = redis.pcall('SET', reply_key, record, 'PX', lifetime).err
    if not failure or string.find(failure, 'OOM', 1, true) then
      return
    end
  end
  call('SET', reply_key, record, 'PX', lifetime)
end

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

-- What stands between the braces of the keys of a queue, and so decides about their slot.
local function tag(name)
  if name == '' then
    return '%' -- Empty braces say nothing about a slot.
  elseif string.find(name, '[{}%%]') then
    name = string.gsub(name, '[{}%%]', { ['{'] = '%7B', ['}'] = '%7D', ['%'] = '%25' })
  end
  return name
end
