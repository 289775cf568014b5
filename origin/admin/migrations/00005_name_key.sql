-- The same part of a name, found without counting characters where the whole
-- name has no more than 80 bytes: each row of a list by name, and each one
-- written, asks for it. What the function returns stays the same, so the
-- indexes that hold it stay valid.

-- +goose Up
CREATE OR REPLACE FUNCTION name_key(name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN name::varchar(80)::text;

-- +goose Down
CREATE OR REPLACE FUNCTION name_key(name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN left(name, 80);
