-- Publishing. Keys: see keys.lua; writes job, sequence, live, lane, sent, due, queues, unique, expiring; for a
-- job with gates waiting, waiting_list, waiting_lists, gates, check_now; for a job that is replaced done, and its slots.
-- Guarantees: all rows of a batch are added, or none; an id of a live or finished job adds nothing; there is one
-- live job per unique key.

-- name: publish
-- {idle, strict, rows}: adds all rows; idle is the state of a job that can start. Returns {1, index, id, index,
-- id ...} of the rows, counted from 1, that existed before; or {0, key, id} if strict and a key is taken: then
-- nothing was added.
local idle, strict, rows = unpack(cmsgpack.unpack(ARGV[1]))

-- Return the unique key, and its holder, of the first row that does not accept that its key is taken. Changes
-- nothing.
local function first_refusal()
  local holders, seen = {}, {}
  for _, row in ipairs(rows) do
    local id, unique, on_conflict = row[1], row[6], row[7]
    if not seen[id] and redis.call('EXISTS', root .. ':job:' .. id) == 0 then
      local holder, state = nil, 'queued'
      if unique then
        holder = holders[unique]
        if not holder then holder, state = find_unique_holder(unique) end
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
for index, row in ipairs(rows) do
  local existing = insert(row, sequence + index, now, idle)
  if existing then
    answer[#answer + 1] = index
    answer[#answer + 1] = existing
  end
end
write_pending()
return answer
