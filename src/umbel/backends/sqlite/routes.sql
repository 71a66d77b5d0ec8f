-- name: routes
-- Routes by key or index, newest first.
select id, key, idx, made, released, why, held, closing, among from route
where namespace = :namespace and (:key is null or key = :key) and (:idx is null or idx = :idx)
  and (not :live or released is null)
order by id desc limit :limit

-- name: any
-- Whether there is a live route. It only reads, so it never waits for a writer.
select 1 from route where namespace = :namespace and released is null limit 1

-- name: retire
-- Sets whether an index gets new routes. No row changes if no worker ever had it.
update worker_index set retiring = :retiring where namespace = :namespace and idx = :idx

-- name: count
-- The number of live routes of an index.
select count(*) from route where namespace = :namespace and idx = :idx and released is null

-- name: check_waiting_lists
-- Checks all jobs again that wait for a route.
update waiting_list set next_check = 0 where namespace = :namespace and key >= 'route:' and key < 'route;'

-- name: forget
-- Deletes released routes except for the newest.
delete from route where namespace = :namespace and released is not null
  and id <= (select max(id) from route) - :keep

-- name: worker_indexes
-- Indexes that a worker has, that are kept, or that have live routes.
select idx, name,
       exists (select 1 from worker w where w.namespace = s.namespace and w.idx = s.idx)
       or coalesce(kept > :now, 0) as alive,
       retiring,
       (select count(*) from route r
        where r.namespace = s.namespace and r.idx = s.idx and r.released is null) as many
from worker_index s where namespace = :namespace and (alive or many > 0) order by idx
