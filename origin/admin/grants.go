package admin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
)

// grantsText gives the role %[1]s the rights of a node. %[2]s is its name as a
// literal, %[3]s the tables.
const grantsText = `-- What the role of the nodes needs. Run this in their database, after the migrations, as the owner of the database
-- and its tables. The role has to be there: CREATE ROLE %[1]s LOGIN PASSWORD '…';
DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %%I TO %%I', current_database(), %[2]s); END $$;
GRANT USAGE ON SCHEMA public TO %[1]s;
GRANT SELECT ON public.%[3]s TO %[1]s;
GRANT EXECUTE ON FUNCTION public.fold(text), public.fold_letters(text), public.name_key(text), public.search_text(text, text, text, text),
	public.search_grams(uuid, text) TO %[1]s;
-- The tables to which nodes write the usage of keys. Nodes write no others.
GRANT SELECT, INSERT, UPDATE, DELETE ON public.key_usage, public.key_last_used, public.usage_writers TO %[1]s;

-- To follow changes. It takes a superuser, or, since Postgres 16, a role that has CREATEROLE, REPLICATION and ADMIN
-- of this one. A managed Postgres may have a way of its own, such as GRANT rds_replication TO %[1]s;
ALTER ROLE %[1]s REPLICATION;

-- Only where nodes read from standbys (--replica-url). It takes a superuser, or, since Postgres 16, ADMIN of pg_read_all_stats.
-- GRANT pg_read_all_stats TO %[1]s;

-- Only where row level security is on for the tables and the role does not own them. It takes a superuser.
-- ALTER ROLE %[1]s BYPASSRLS;
`

// Grants is SQL that gives the role the rights of a node.
func Grants(role string) (string, error) {
	switch {
	case role == "", len(role) > 63, strings.ContainsAny(role, "\x00\n\r$"):
		return "", errors.New("a role's name has 1 to 63 bytes, all in one line, and here no $")
	case role == "public", role == "none":
		return "", fmt.Errorf("%s is no role's name, quoted or not", role)
	}
	return fmt.Sprintf(grantsText, pgx.Identifier{role}.Sanitize(), "'"+strings.ReplaceAll(role, "'", "''")+"'",
		strings.Join(lists.Tables(), ", public.")), nil
}
