-- name: lease
-- Whether this very lease is held; and whether the job has steps already, and no blame.
select steps and blame = 0 from job where id = :id and owner = :owner and fence = :fence

-- name: gets_on
-- What the job leaves behind is to be looked for; deaths so far are not its fault.
update job set steps = 1, blame = 0 where id = :id

-- name: keep
-- A step, if its place is free.
insert into step (job, number, name, content_type, result, started, finished)
values (:id, :number, :name, :content_type, :result, :started, :finished) on conflict do nothing

-- name: steps
-- What a job of this namespace has done, in order.
select number, name, content_type, result, started, finished from step
where job = :id and exists (select 1 from job where id = :id and namespace = :namespace
                            union all
                            select 1 from record where id = :id and namespace = :namespace)
order by number
