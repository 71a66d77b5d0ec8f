-- What finding and listing jobs share. It stands before their scripts, after keys.lua and jobs.lua; reads job,
-- line.

-- Where a job waits, or nothing, and what it holds, part by part. What somebody has written by hand is told as
-- text, and may be anything.
local function gates_of(id, state)
  local job = read(id, 'gates', 'slots')
  local slots = {}
  for place, part in ipairs(not FINAL[state] and job[3] and slots_in(job[3]) or {}) do
    slots[place] = type(part) == 'number' and string.format('%.0f', part) or tostring(part)
  end
  return state == 'waiting' and gate_at(job[2], job[3]) or false, slots
end

-- How many stand before a job in its lane of the line at a gate; false when it is out of the way.
local function ahead_of(id, gate)
  local job = read(id, 'queue', 'kind', 'place')
  local lane = known_kind(job[3]) .. ':' .. (job[2] or '')
  return redis.call('ZRANK', line_of(gate, lane), (job[4] or NOWHERE) .. id)
end
