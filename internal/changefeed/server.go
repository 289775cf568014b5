package changefeed

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Identity is what a fleet follows: one database of one Postgres. A copy of the
// database has another oid, so another identity; a standby, and what it becomes when
// it is promoted, has the same.
type Identity struct {
	System   string // the system identifier of pg_control_system()
	Database uint32 // oid
	Name     string // of the database: for people, not part of the identity
}

// Digest is the identity as twelve letters and digits, for names of keys.
func (i Identity) Digest() string {
	return Digest(fmt.Sprintf("%s/%d", i.System, i.Database))
}

func (i Identity) String() string {
	return fmt.Sprintf("database %s (oid %d of Postgres %s)", i.Name, i.Database, i.System)
}

// Server is one run of a Postgres server, and the database that answers there, as far as the
// answer says.
type Server struct {
	Identity
	Timeline  uint32   // each promotion begins the next one; 0 = the server is in recovery
	StartedAt string   // when the server was started, in seconds since 1970 by its own clock
	Address   net.Addr // nil = not known
}

// TimelineName names the system and the timeline.
func (s Server) TimelineName() string { return fmt.Sprintf("%s/%d", s.System, s.Timeline) }

// Digest is a short hash of a text, without dots.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// asTime formats Server.StartedAt.
func asTime(startedAt string) string {
	seconds, err := strconv.ParseFloat(startedAt, 64)
	if err != nil {
		return startedAt
	}
	return time.UnixMilli(int64(1000 * seconds)).UTC().Format("2006-01-02T15:04:05.000Z")
}
