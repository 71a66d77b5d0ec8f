-- name: routes
-- Routes by key or index, the newest first.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.route
where namespace = %(namespace)s and (%(key)s::text is null or key = %(key)s)
  and (%(idx)s::integer is null or idx = %(idx)s) and (not %(live)s::boolean or released is null)
order by id desc limit %(limit)s

-- name: fold
-- What has been set free until now is free.
select $schema.fold_knocks(%(namespace)s)

-- name: close
-- A key's route is to be released.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.close_route(%(namespace)s, %(key)s, %(why)s, %(target)s)

-- name: retire
-- An index gets no more routes, or may get some again.
select $schema.retire(%(namespace)s, %(idx)s, %(retiring)s)

-- name: seats
-- Indexes that somebody has, that are kept, or that have live routes.
select * from (
  select idx, name, $schema.is_seated(namespace, idx) as alive, retiring,
         (select count(*) from $schema.route r
          where r.namespace = s.namespace and r.idx = s.idx and r.released is null) as many
  from $schema.seat s where namespace = %(namespace)s
) f where alive or many > 0 order by idx

-- name: sweep
-- What can be released now.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.settle_routes(%(namespace)s, %(idle)s)

-- name: any
-- Whether there is a live route: without one nobody takes the gates' lock.
select exists (select 1 from $schema.route where namespace = %(namespace)s and released is null)

-- name: forget
-- Released routes are remembered for as long as few were made since.
delete from $schema.route
where namespace = %(namespace)s and released is not null
  and id <= (select max(id) from $schema.route) - %(keep)s
