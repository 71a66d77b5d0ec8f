-- name: lock_revision
-- Returns the last revision. SQLite has one write transaction at a time.
insert into section (namespace, name, revision) values (:namespace, '', 0)
on conflict do update set revision = section.revision
returning revision

-- name: has_lapsed
-- One row if an entry has lapsed and is still in the table.
select 1 from entry where namespace = :namespace and until <= :now limit 1

-- name: entry_revisions
-- The revisions of those of these entries that have not lapsed.
select key, revision from entry
where namespace = :namespace and key in (select value from json_each(:keys))
  and (until is null or until > :now)

-- name: put_entry
-- Writes one entry. Without seconds it has no lease.
insert into entry (namespace, key, value, revision, until)
values (:namespace, :key, :value, :revision, :now + :seconds)
on conflict do update
set value = excluded.value, revision = excluded.revision, until = excluded.until

-- name: delete_entries
-- Deletes entries.
delete from entry where namespace = :namespace and key in (select value from json_each(:keys))

-- name: change_sections
-- Sets the revision of changed sections.
insert into section (namespace, name, revision)
select :namespace, value, :revision from json_each(:sections) where true
on conflict do update set revision = excluded.revision

-- name: read_entries
-- The entries of a range, the revision of the section, the time, and whether any entry has lapsed and
-- is still in the table. One row without an entry if there is none.
select e.key, e.value, e.revision, e.until - :now,
       coalesce((select revision from section where namespace = :namespace and name = :section), 0),
       :now, exists (select 1 from entry where namespace = :namespace and until <= :now)
from (select 1) one left join (
  select key, value, revision, until from entry
  where namespace = :namespace and key >= :prefix and key < :end and key > :after
    and (until is null or until > :now)
  order by key limit :limit) e on true
order by e.key

-- name: renew_entries
-- Extends the leases of entries that were not written by another commit and have not lapsed. Returns
-- their keys. An entry without a lease gets none.
update entry set until = iif(until is null, null, :now + :seconds)
where namespace = :namespace and (until is null or until > :now)
  and (key, revision) in (
    select k.value, r.value from json_each(:keys) k join json_each(:revisions) r on r.key = k.key)
returning key

-- name: section_revisions
-- The revisions of these sections, and the seconds until the next of their leases lapses. One row without
-- a section if none of them was ever changed.
select s.name, s.revision,
       (select min(until) - :now from entry
        where namespace = :namespace and until is not null
          and substr(key, 1, instr(key, '/')) in (select value from json_each(:sections)))
from (select 1) one left join section s
  on s.namespace = :namespace and s.name in (select value from json_each(:sections))

-- name: delete_lapsed
-- Deletes entries that have lapsed, the oldest first. Returns their keys.
delete from entry
where namespace = :namespace and key in (
  select key from entry where namespace = :namespace and until <= :now order by until limit :limit)
returning key
