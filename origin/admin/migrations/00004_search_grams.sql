-- Searches by grams that belong to one workspace, in place of trigrams that all
-- shared: what a search costs no longer grows with its workspace, nor with what
-- others have. Built and dropped CONCURRENTLY, so that nobody waits to write.
-- Nodes of the version before go on meanwhile; once their index is gone, a term
-- that few rows match makes them walk the whole list, until they are replaced.

-- +goose NO TRANSACTION
-- +goose Up

-- The grams of a folded text: every three characters in a row in which there is
-- no blank or line feed, as numbers. A text that contains another has all of
-- its grams, in any language and whatever the locale of the database is.
-- The upper half is the workspace's: its grams lie side by side in the index,
-- which keeps a writer to few pages, and what is read of them is its own. Two
-- workspaces of one hash, or two grams, cost time; rows are compared anyway.
CREATE OR REPLACE FUNCTION search_grams(workspace uuid, folded text) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY(
        SELECT own + hashtext(a || b || c)
        FROM (SELECT unnest(letters) AS a, unnest(letters[2:]) AS b, unnest(letters[3:]) AS c, own
              FROM (SELECT string_to_array(replace(folded COLLATE "C", E'\n', ' '), NULL, ' ') AS letters, -- blanks are NULL
                           uuid_hash(workspace)::bigint << 32 AS own OFFSET 0) text) three
        WHERE a IS NOT NULL AND b IS NOT NULL AND c IS NOT NULL);

-- What an earlier attempt left when it was interrupted has to go first. ANALYZE
-- is spared the grams: plans do not depend on how often which is found.
DROP INDEX CONCURRENTLY IF EXISTS items_by_grams;
CREATE INDEX CONCURRENTLY items_by_grams ON items USING gin (search_grams(workspace_id, search_text(name, sku, description, NULL))) WHERE active;
ALTER INDEX items_by_grams ALTER COLUMN 1 SET STATISTICS 0;
DROP INDEX CONCURRENTLY IF EXISTS contacts_by_grams;
CREATE INDEX CONCURRENTLY contacts_by_grams ON contacts USING gin (search_grams(workspace_id, search_text(name, email, phone, tin))) WHERE active;
ALTER INDEX contacts_by_grams ALTER COLUMN 1 SET STATISTICS 0;
DROP INDEX CONCURRENTLY IF EXISTS items_by_search;
DROP INDEX CONCURRENTLY IF EXISTS contacts_by_search;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS items_by_search;
CREATE INDEX CONCURRENTLY items_by_search ON items USING gin (workspace_id, search_text(name, sku, description, NULL) gin_trgm_ops) WHERE active;
DROP INDEX CONCURRENTLY IF EXISTS contacts_by_search;
CREATE INDEX CONCURRENTLY contacts_by_search ON contacts USING gin (workspace_id, search_text(name, email, phone, tin) gin_trgm_ops) WHERE active;
DROP INDEX CONCURRENTLY IF EXISTS items_by_grams;
DROP INDEX CONCURRENTLY IF EXISTS contacts_by_grams;
DROP FUNCTION IF EXISTS search_grams;
