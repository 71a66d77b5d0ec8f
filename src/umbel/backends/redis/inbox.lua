-- Events that other programs have pushed. Keys: see keys.lua; writes inbox, and all that a publish writes; for
-- events that cannot be read, buried.
-- Guarantees: an event leaves the inbox in the step that makes a job or a record of it; if several processes adopt
-- the same events at once, one of them does it.

-- name: peek
-- {limit, max_bytes, excerpt_size}: returns {text, size, digest} of the first events, up to a total size; of an event
-- that is too large alone, the beginning of the text.
local limit, max_bytes, excerpt_size = unpack(cmsgpack.unpack(ARGV[1]))
local events, total = {}, 0
for at = 0, limit - 1 do
  local text = redis.call('LINDEX', root .. ':inbox', at)
  total = total + #(text or '')
  if not text or (at > 0 and total > max_bytes) then break end
  local shown = #text > max_bytes and string.sub(text, 1, excerpt_size) or text
  events[#events + 1] = {shown, #text, redis.sha1hex(text)}
end
return events

-- name: adopt
-- {events}: each is {digest, row, verdict}; a verdict is {reason, attempt, only if the key is taken}. Makes jobs of
-- the first events if they are still the same. Returns the indexes, counted from 1, of the events that did not
-- become a job: the job existed before, or it is buried.
local events = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':inbox'
local sequence = redis.call('INCRBY', root .. ':sequence', #events) - #events

local function bury(id, reason, attempt)
  end_idle(id, 'buried', now, {'reason', reason, 'attempts', attempt})
end

-- Return whether the event became a job that is to run.
local function adopt(row, job_number, reason, attempt, if_taken)
  local id = row[1]
  local existing = insert(row, job_number, now, 'queued')
  if existing == id then return false end
  if existing and not if_taken then return true end  -- another job does the same work
  if existing then
    row[6] = false
    insert(row, job_number, now, 'queued')
  end
  if existing or (reason and not if_taken) then
    bury(id, reason, attempt)
    return false
  end
  return true
end

local others = {}
for index, event in ipairs(events) do
  local text = redis.call('LINDEX', key, 0)
  if not text or redis.sha1hex(text) ~= event[1] then break end
  redis.call('LPOP', key)
  if not adopt(event[2], sequence + index, unpack(event[3] or {}, 1, 3)) then
    others[#others + 1] = index
  end
end
write_pending()
return others
