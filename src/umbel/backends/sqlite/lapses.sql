-- name: count
-- The death of a worker was counted against a job.
insert into death (incarnation, job, namespace, blamed, counted)
values (:owner, :id, :namespace, :blamed, :now) on conflict do nothing

-- name: report
-- The process of an incarnation was alive when its leases lapsed.
insert into lapse (incarnation, namespace, reported) values (:incarnation, :namespace, :now)
on conflict do nothing

-- name: taken_back
-- Deaths that were counted, and were none.
select death.incarnation, death.job, death.blamed from lapse join death using (incarnation)
where lapse.namespace = :namespace and death.namespace = :namespace

-- name: correct_live
-- A live job has one death less, and one lapse more.
update job
set deaths = max(deaths - 1, 0), blame = max(blame - :blamed, 0), lapses = lapses + 1
where id = :job and namespace = :namespace

-- name: come_back
-- A job that was buried for its deaths, and would not have been without this one, is queued again. One
-- that may die only once stays buried: it has started. A key that another job holds now is lost.
insert into job (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                 expires, attempt, deaths, blame, lapses, max_deaths, unique_key, traceparent, headers,
                 fence, attempts, steps, heard)
select id, namespace, queue, kind, task, type, 'queued', priority, content_type, body, created,
       expires, attempt, max(deaths - 1, 0), max_deaths - 1, lapses + 1, max_deaths,
       iif(exists (select 1 from job where job.namespace = record.namespace
                                       and job.unique_key = record.unique_key), null, unique_key),
       traceparent, headers, fence, attempts,
       exists (select 1 from step where step.job = record.id and step.namespace = record.namespace),
       queue like 'worker-%'
from record
where id = :job and namespace = :namespace and state = 'buried' and reason like 'poison: %'
  and max_deaths > 1 and :blamed

-- name: remove_record
-- It lives again.
delete from record where id = :job and namespace = :namespace

-- name: correct_record
-- A finished job stays what it is, with one death less and one lapse more.
update record set deaths = max(deaths - 1, 0), lapses = lapses + 1
where id = :job and namespace = :namespace

-- name: settle
-- This death has been taken back.
delete from death where incarnation = :incarnation and job = :job

-- name: forget_deaths
-- What was counted long ago is not taken back any more.
delete from death where counted < :now - :day

-- name: forget_lapses
-- So are reports.
delete from lapse where reported < :now - :day
