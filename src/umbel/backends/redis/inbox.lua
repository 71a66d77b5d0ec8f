-- Events that other programs have pushed. Keys: see keys.lua; touches inbox, and all of a publish; for
-- what cannot be read, buried.
-- Guarantees: an event leaves the inbox in the step that makes a job of it, or a record; of several who
-- adopt the same events at once, one does.

-- name: peek
-- {many, largest, some}: the first events, as many as are not too large together. Gives {text, size,
-- digest} of each; of one that is too large alone, the beginning of the text.
local many, largest, some = unpack(cmsgpack.unpack(ARGV[1]))
local events, total = {}, 0
for at = 0, many - 1 do
  local text = redis.call('LINDEX', root .. ':inbox', at)
  total = total + #(text or '')
  if not text or (at > 0 and total > largest) then break end
  local shown = #text > largest and string.sub(text, 1, some) or text
  events[#events + 1] = {shown, #text, redis.sha1hex(text)}
end
return events

-- name: adopt
-- {events}: each is {digest, row, verdict}; a verdict is {reason, attempt, only if the key is taken}.
-- Makes jobs of the first events, if they are still those. Gives the places, counted from 1, of what
-- did not become a job: it was one before, or is buried.
local events = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':inbox'
local sequence = redis.call('INCRBY', root .. ':sequence', #events) - #events

local function bury(id, reason, attempt)
  local job = read(id, 'queue', 'kind', 'place', 'unique', 'gates')
  leave(id, job[1], job[2], job[3], job[4], nil, gate_at(job[6]))
  let_go(id, job[5])
  finish(id, 'buried', now, {'reason', reason, 'attempts', attempt})
end

-- Whether it became a job that is to run.
local function adopt(row, number, reason, attempt, if_taken)
  local id = row[1]
  local existing = insert(row, number, now, 'queued')
  if existing == id then return false end
  if existing and not if_taken then return true end  -- another job does the same, which will do
  if existing then
    row[6] = false
    insert(row, number, now, 'queued')
  end
  if existing or (reason and not if_taken) then
    bury(id, reason, attempt)
    return false
  end
  return true
end

local others = {}
for place, event in ipairs(events) do
  local text = redis.call('LINDEX', key, 0)
  if not text or redis.sha1hex(text) ~= event[1] then break end
  redis.call('LPOP', key)
  if not adopt(event[2], sequence + place, unpack(event[3] or {}, 1, 3)) then
    others[#others + 1] = place
  end
end
write_all()
return others
