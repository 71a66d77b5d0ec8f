-- Publishing. Keys: see keys.lua; touches job, sequence, live, lane, sent, due, queues, unique; for one that
-- has gates waiting, line, lines, gates, awake; and for a job that is replaced done, and what it held.
-- Guarantees: all rows of a batch are added, or none; an id that lives or has finished adds nothing;
-- of one unique key there is one live job.

-- name: publish
-- {idle, strict, rows}: adds all. Gives {1, place, id, place, id ...} of the rows, counted from 1,
-- that were there before; or {0, key, id} when strict and a key is taken: then nothing was added.
local idle, strict, rows = unpack(cmsgpack.unpack(ARGV[1]))

-- The first row whose key is taken and that does not put up with it; looks ahead, changes nothing.
local function first_refusal()
  local holders, seen = {}, {}
  for _, row in ipairs(rows) do
    local id, unique, on_conflict = row[1], row[6], row[7]
    if not seen[id] and redis.call('EXISTS', root .. ':job:' .. id) == 0 then
      local holder, state = nil, 'queued'
      if unique then
        holder = holders[unique]
        if not holder then holder, state = holder_of(unique) end
      end
      if holder and (on_conflict == 'raise' or (state == 'running' and on_conflict ~= 'return')) then
        return unique, holder
      end
      if not holder or on_conflict ~= 'return' then
        seen[id] = true
        if unique then holders[unique] = id end
      end
    end
  end
  return nil
end

if strict then
  local unique, holder = first_refusal()
  if unique then return {0, unique, holder} end
end
local sequence = redis.call('INCRBY', root .. ':sequence', #rows) - #rows
local answer = {1}
for place, row in ipairs(rows) do
  local existing = insert(row, sequence + place, now, idle)
  if existing then
    answer[#answer + 1] = place
    answer[#answer + 1] = existing
  end
end
write_all()
return answer
