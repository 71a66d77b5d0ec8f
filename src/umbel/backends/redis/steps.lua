-- Steps that a job has done. Keys: see keys.lua; writes steps and job, reads leases.
-- Guarantees: a step is stored only under the current lease; the first step with a number stays.

-- name: keep
-- {id, owner, fence, number, step, id ...}: stores steps. Returns the indexes, counted from 0, of those that were
-- refused.
local done = cmsgpack.unpack(ARGV[1])
local refused = {}
for at = 1, #done, 5 do
  local id, owner, fence, number, step = unpack(done, at, at + 4)
  local job = redis.call('HGET', root .. ':job:' .. id, 'state')
  if job == 'running' and tonumber(redis.call('HGET', root .. ':leases:' .. owner, id) or nil) == fence then
    redis.call('HSETNX', root .. ':steps:' .. id, number, step)
    redis.call('HDEL', root .. ':job:' .. id, 'blame', 'lapses')  -- it makes progress: earlier deaths are not its fault
  else
    refused[#refused + 1] = (at - 1) / 5
  end
end
return refused
