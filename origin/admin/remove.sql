-- Removes what `listedge migrate up` and nodes have made. Kept are the tables that other systems write, items, contacts,
-- api_keys and workspaces, with their rows and constraints, and roles. Nodes have to be stopped: a slot that is in use is not dropped.
SET LOCAL lock_timeout = '5s';
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE database = current_database() AND slot_name ~ ('^listedge_' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '(_|$)');
DROP PUBLICATION IF EXISTS listedge;
DROP TABLE IF EXISTS public.audit_log, public.key_usage, public.key_last_used, public.usage_writers, public.goose_db_version;
DROP FUNCTION IF EXISTS public.audit_log_is_append_only();
DROP INDEX IF EXISTS public.api_keys_by_workspace, public.items_by_created_at, public.items_by_name, public.items_low_by_created_at, public.items_low_by_name,
    public.items_services_by_created_at, public.items_services_by_name, public.items_by_grams, public.contacts_by_created_at, public.contacts_by_name,
    public.contacts_suppliers_by_created_at, public.contacts_suppliers_by_name, public.contacts_by_grams;
DROP FUNCTION IF EXISTS public.search_grams(uuid, text), public.search_text(text, text, text, text), public.name_key(text), public.fold(text),
    public.fold_letters(text);
