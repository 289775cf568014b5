package admin

import (
	"errors"

	"listedge/internal/remedy"
)

// server is what decides whether a database can have the schema.
type server struct {
	number            int    // server_version_num
	version, encoding string // server_version, and the database's encoding
	standby           bool
}

const serverSQL = `SELECT current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1),
	pg_encoding_to_char(encoding), pg_is_in_recovery() FROM pg_database WHERE datname = current_database()`

// check returns why the database cannot have the schema; nil if it can.
// The client's encoding does not help: the database cannot store a character that its own
// encoding lacks.
func (s server) check() error {
	switch {
	case s.number < 140_000:
		return remedy.Add(errors.New("Postgres "+s.version+" is too old"), "use Postgres 14 or later")
	case s.encoding != "UTF8":
		return remedy.Add(errors.New("the database's encoding is "+s.encoding+", which cannot hold every name"), "make a database with ENCODING 'UTF8'")
	}
	return nil
}
