-- Steps that a job has done. Keys: see keys.lua; touches steps and job, reads held.
-- Guarantees: a step is kept only under the lease that is held now; the first in a place stays.

-- name: keep
-- {id, owner, fence, number, step, id ...}: keeps steps. Gives the places, counted from 0, of those that were
-- refused.
local done = cmsgpack.unpack(ARGV[1])
local refused = {}
for at = 1, #done, 5 do
  local id, owner, fence, number, step = unpack(done, at, at + 4)
  local job = redis.call('HGET', root .. ':job:' .. id, 'state')
  if job == 'running' and tonumber(redis.call('HGET', root .. ':held:' .. owner, id) or nil) == fence then
    redis.call('HSETNX', root .. ':steps:' .. id, number, step)
    redis.call('HDEL', root .. ':job:' .. id, 'blame', 'lapses')  -- it gets on: nothing so far is its fault
  else
    refused[#refused + 1] = (at - 1) / 5
  end
end
return refused
