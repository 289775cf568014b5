-- How the hashes of imported keys are made of their texts: of which forms keys were ever imported. `keys import`
-- writes it, nodes read it: they look a text up that is no key of ours only where it can be one of these.

-- +goose Up
CREATE TABLE listedge_key_forms (
    digest text NOT NULL CHECK (digest IN ('sha256', 'sha512')),
    behind text NOT NULL CHECK (behind ~ '^[!-~]?$'), -- the digest is of what follows the first such character; '' = of all
    PRIMARY KEY (digest, behind)
);

-- +goose Down
DROP TABLE IF EXISTS public.listedge_key_forms;
