package origin

import (
	"errors"
	"fmt"
)

// oldestServer is the oldest Postgres that has what the schema uses.
const oldestServer = 14

// tooOld says that a server is, by its server_version_num, and what to do; empty
// if it is not.
func tooOld(version int) (text, do string) {
	if version/10_000 >= oldestServer {
		return "", ""
	}
	name := fmt.Sprintf("%d.%d", version/10_000, version%10_000)
	if version < 100_000 { // 9.6.24 is 90624
		name = fmt.Sprintf("%d.%d.%d", version/10_000, version/100%100, version%100)
	}
	return fmt.Sprintf("Postgres %s is too old", name), fmt.Sprintf("use Postgres %d or later", oldestServer)
}

// notUTF8 says that a database is of another encoding, and what to do; empty if
// it is not. The client's encoding does not help: what the database's has no
// character for cannot be written.
func notUTF8(encoding string) (text, do string) {
	if encoding == "UTF8" {
		return "", ""
	}
	return "the database's encoding is " + encoding + ", which cannot hold every name", "make a database with ENCODING 'UTF8'"
}

// checkServer returns why a database cannot have the schema, in the doctor's
// words; nil if it can.
func checkServer(version int, encoding string) error {
	text, do := tooOld(version)
	if text == "" {
		text, do = notUTF8(encoding)
	}
	if text == "" {
		return nil
	}
	return errors.New(text + ": " + do)
}
