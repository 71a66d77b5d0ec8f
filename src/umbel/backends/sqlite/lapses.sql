-- name: count
-- Records that the death of a worker was counted against a job.
insert into death (incarnation, job, namespace, blamed, counted)
values (:owner, :id, :namespace, :blamed, :now) on conflict do nothing

-- name: report
-- Records that the process of an incarnation was alive when its leases lapsed.
insert into lapse (incarnation, namespace, reported) values (:incarnation, :namespace, :now)
on conflict do nothing

-- name: wrong_deaths
-- Counted deaths of incarnations that turned out to be alive.
select death.incarnation, death.job, death.blamed from lapse join death using (incarnation)
where lapse.namespace = :namespace and death.namespace = :namespace

-- name: correct_live
-- Counts one death less and one lapse more for a live job.
update job
set deaths = max(deaths - 1, 0), blame = max(blame - :blamed, 0), lapses = lapses + 1
where id = :job and namespace = :namespace

-- name: requeue_buried
-- Queues a job again that was buried for its deaths and would not have been without this one. A job
-- that may die only once stays buried, because it has started. A unique key that another job holds
-- now is lost.
insert into job (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                 expires, attempt, deaths, blame, lapses, max_deaths, unique_key, traceparent, headers,
                 fence, attempts, steps, received)
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
-- Deletes the record of that job.
delete from record where id = :job and namespace = :namespace

-- name: correct_record
-- Counts one death less and one lapse more for a finished job.
update record set deaths = max(deaths - 1, 0), lapses = lapses + 1
where id = :job and namespace = :namespace

-- name: settle
-- Deletes a death that was taken back.
delete from death where incarnation = :incarnation and job = :job

-- name: forget_deaths
-- Deletes old deaths. They cannot be taken back any more.
delete from death where counted < :now - :day

-- name: forget_lapses
-- Deletes old reports.
delete from lapse where reported < :now - :day
