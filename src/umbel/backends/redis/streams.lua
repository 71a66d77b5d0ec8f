-- What the scripts of the transport share: a stream for each lane, read by one group. It stands before
-- them, after keys.lua, which has the root, and jobs.lua, which has the hints. A lane is called <kind>:<queue> here.
--
--   <root>:stream:<lane>     stream  messages, until they are accepted; a field for each attribute
--   <root>:receiver:<name>   string  there for as long as the receiver lives: it expires
--   <root>:lives             hash    from a lane to the server's run when somebody last saw to it
--
-- What a receiver has and did not accept is pending in the group under its name. What was given back
-- is pending under a name that nobody has, and is handed out first. A stream stays when it is empty:
-- one that is missing was deleted, flushed or evicted, with all that was sent there.

local GROUP, BACK = 'umbel', '-'
local MOST_AT_ONCE = 1000

local function stream(lane)
  return root .. ':stream:' .. lane
end

-- Which run of the server this is; nothing where the user may not ask.
local function this_run()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and string.match(told, 'run_id:(%w+)') or nil
end

-- Makes what is missing of a lane. Whoever asks for it has told that it was missing.
local function make(lane)
  local made = redis.pcall('XGROUP', 'CREATE', stream(lane), GROUP, '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', stream(lane), GROUP, '0', 'MKSTREAM')
  end
  local run = this_run()
  if run then redis.call('HSET', root .. ':lives', lane, run) end
end

-- The ids in lists of so many as a command takes.
local function portions(ids)
  local lists = {}
  for first = 1, #ids, MOST_AT_ONCE do
    lists[#lists + 1] = {unpack(ids, first, math.min(first + MOST_AT_ONCE - 1, #ids))}
  end
  return lists
end

-- These are in the books. Also where somebody else has them by now.
local function forget(lane, ids)
  for _, some in ipairs(portions(ids)) do
    redis.pcall('XACK', stream(lane), GROUP, unpack(some))
    redis.call('XDEL', stream(lane), unpack(some))
  end
end

-- These are anybody's again, unless they were accepted. Whether the lane is there.
local function give_back(lane, ids)
  for _, some in ipairs(portions(ids)) do
    some[#some + 1] = 'JUSTID'
    if redis.pcall('XCLAIM', stream(lane), GROUP, BACK, 0, unpack(some)).err then return false end
  end
  tell('m', lane)
  return true
end

-- The ids of what a receiver has in a lane, the first so many; nil when there is no such lane.
local function pending(lane, name, many)
  local ids = {}
  local found = redis.pcall('XPENDING', stream(lane), GROUP, '-', '+', many, name)
  if found.err then return nil end
  for _, one in ipairs(found) do ids[#ids + 1] = one[1] end
  return ids
end

-- A receiver is no more: what it has in a lane goes back, and its name is forgotten.
local function bury(lane, name)
  local ids
  repeat
    ids = pending(lane, name, MOST_AT_ONCE)
    if not ids or (#ids > 0 and not give_back(lane, ids)) then return end
  until #ids < MOST_AT_ONCE
  redis.pcall('XGROUP', 'DELCONSUMER', stream(lane), GROUP, name)
end

-- Buries the receivers of a lane whose sign of life has expired.
local function bury_the_dead(lane)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream(lane), GROUP)) do
    local name = consumer[2]
    if name ~= BACK and redis.call('EXISTS', root .. ':receiver:' .. name) == 0 then
      bury(lane, name)
    end
  end
end
