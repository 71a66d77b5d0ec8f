-- name: routes
-- Routes by key or index, the newest first.
select id, key, idx, made, released, why, held, closing, among from route
where namespace = :namespace and (:key is null or key = :key) and (:idx is null or idx = :idx)
  and (not :live or released is null)
order by id desc limit :limit

-- name: any
-- Whether there is a live route; reads only, so it never waits for a writer.
select 1 from route where namespace = :namespace and released is null limit 1

-- name: retire
-- An index gets no more routes, or may get some again. No row when nobody ever had it.
update seat set retiring = :retiring where namespace = :namespace and idx = :idx

-- name: count
-- How many live routes an index has.
select count(*) from route where namespace = :namespace and idx = :idx and released is null

-- name: look
-- Whoever waits before a worker may have somewhere to go now.
update line set look = 0 where namespace = :namespace and key >= 'route:' and key < 'route;'

-- name: forget
-- Released routes are remembered for as long as few were made since.
delete from route where namespace = :namespace and released is not null
  and id <= (select max(id) from route) - :keep

-- name: seats
-- Indexes that somebody has, that are kept, or that have live routes.
select idx, name,
       exists (select 1 from worker w where w.namespace = s.namespace and w.idx = s.idx)
       or coalesce(kept > :now, 0) as alive,
       retiring,
       (select count(*) from route r
        where r.namespace = s.namespace and r.idx = s.idx and r.released is null) as many
from seat s where namespace = :namespace and (alive or many > 0) order by idx
