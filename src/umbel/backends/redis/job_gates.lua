-- Gates and slots of a job, shared by the scripts that find and list jobs. Included after keys.lua and jobs.lua; reads
-- job, waiting_list.

-- Return the gate at which a job waits (false if it does not), and the parts of its slots. They are returned as text,
-- because people edit values by hand.
local function gate_and_slots(id, state)
  local job = read_job(id, 'gates', 'slots')
  local slots = {}
  for index, part in ipairs(not FINAL[state] and job[3] and decode_slots(job[3]) or {}) do
    slots[index] = type(part) == 'number' and string.format('%.0f', part) or tostring(part)
  end
  return state == 'waiting' and next_gate(job[2], job[3]) or false, slots
end

-- Return how many jobs come before a job in its lane of a waiting list; false if the job is set aside.
local function ahead_of(id, gate)
  local job = read_job(id, 'queue', 'kind', 'sequence')
  local lane = normalize_kind(job[3]) .. ':' .. (job[2] or '')
  return redis.call('ZRANK', waiting_list_key(gate, lane), (job[4] or NO_SEQUENCE) .. id)
end
