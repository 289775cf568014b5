package admin

import (
	"errors"
	"fmt"
)

// server is what decides whether a database can have the schema.
type server struct {
	version  int // server_version_num
	encoding string
	standby  bool
}

const serverSQL = `SELECT current_setting('server_version_num')::int, pg_encoding_to_char(encoding), pg_is_in_recovery() FROM pg_database
	WHERE datname = current_database()`

// oldestServer is the oldest Postgres that has what the schema uses.
const oldestServer = 14

// tooOld says that the server is too old, and what to do; empty if it is not.
func (s server) tooOld() (text, do string) {
	if s.version/10_000 >= oldestServer {
		return "", ""
	}
	name := fmt.Sprintf("%d.%d", s.version/10_000, s.version%10_000)
	if s.version < 100_000 { // 9.6.24 is 90624
		name = fmt.Sprintf("%d.%d.%d", s.version/10_000, s.version/100%100, s.version%100)
	}
	return fmt.Sprintf("Postgres %s is too old", name), fmt.Sprintf("use Postgres %d or later", oldestServer)
}

// notUTF8 says that the database has another encoding, and what to do; empty if
// it has not. The client's encoding does not help: the database cannot store a
// character that its own encoding lacks.
func (s server) notUTF8() (text, do string) {
	if s.encoding == "UTF8" {
		return "", ""
	}
	return "the database's encoding is " + s.encoding + ", which cannot hold every name", "make a database with ENCODING 'UTF8'"
}

// check returns why the database cannot have the schema; nil if it can.
func (s server) check() error {
	text, do := s.tooOld()
	if text == "" {
		text, do = s.notUTF8()
	}
	if text == "" {
		return nil
	}
	return errors.New(text + ": " + do)
}
