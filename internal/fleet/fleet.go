// Package fleet says what the nodes of a fleet have in common: the database that they follow,
// the run of its server and the timeline, and the beginning of their keys in Redis.
//
//	Server ──► Followed ──► judges: a server (OldTimeline), an answer (Refuse), a log (ObserveEpoch)
//	              └───────► Prefix of all keys in Redis, Claim: one database has the name of a fleet
//
// A fleet has the name of its region, and most have none.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
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

// Followed is what a node knows of the database that its fleet follows, and judges every
// server and every log by it. Nothing is known until a server has answered. Safe for use by
// several goroutines.
//
// A promotion ends the timeline of the old primary, which may still run and not know it. So
// the newest timeline that the fleet has followed decides, in three places: OldTimeline
// judges the server to which this node is connected, Refuse each answer, and ObserveEpoch
// each log. In a split brain, all nodes that know the later timeline refuse the earlier one.
type Followed struct {
	Region string // the name of the fleet; empty = it has none
	// Known is closed as soon as it is known which timeline the fleet follows. No page and no key
	// is read before that. nil = it need not be known.
	Known chan struct{}

	mu     sync.Mutex // guards all below
	server Server     // to which this node is connected
	digest string     // of its identity; empty = it is not known yet
	newest uint32     // the highest timeline among this identity's epochs that the node has seen
}

// Prefix begins all keys of the fleet in Redis. Fleets of different regions that use one
// Redis share none.
func (f *Followed) Prefix() string {
	if f.Region == "" {
		return "listedge:"
	}
	return "listedge:" + f.Region + ":"
}

// LogPrefix begins those keys of the fleet that have to be on one server of a Cluster.
func (f *Followed) LogPrefix() string { return f.Prefix() + "{changes}:" }

// EpochKey is the key of Redis that names the present epoch.
func (f *Followed) EpochKey() string { return f.LogPrefix() + f.Digest() + ":epoch" }

// SetServer records the server to which this node is connected.
func (f *Followed) SetServer(s Server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if digest := s.Digest(); digest != f.digest {
		f.digest, f.newest = digest, 0
	}
	f.server = s
}

// Identity is the database that is followed; ok is false while it is not known.
func (f *Followed) Identity() (identity Identity, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.server.Identity, f.digest != ""
}

// Digest is the digest of the identity; empty while it is not known.
func (f *Followed) Digest() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.digest
}

// MarshalText implements encoding.TextMarshaler: it names the database; empty = not known yet.
func (f *Followed) MarshalText() (text []byte, err error) {
	if identity, ok := f.Identity(); ok {
		text = []byte(identity.String())
	}
	return text, nil
}

// ObserveEpoch records the present epoch, and says whether its log may be read: it must be of
// this identity, and of no older timeline. Names of another form belong to any
// identity and to no timeline.
func (f *Followed) ObserveEpoch(epoch string) (readable bool) {
	n, ok := ParseEpoch(epoch)
	if !ok {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.digest != "" && n.Identity != f.digest {
		return false
	}
	f.newest = max(f.newest, n.Timeline)
	return n.Timeline >= max(f.newest, f.server.Timeline)
}

// awaitTimeout is how long a query waits for Known.
const awaitTimeout = time.Second

// AwaitTimeline waits until it is known which timeline the fleet follows, and says whether it is.
func (f *Followed) AwaitTimeline(ctx context.Context) bool {
	if f.KnowsTimeline() { // also if ctx has ended
		return true
	}
	select {
	case <-f.Known:
	case <-ctx.Done():
	case <-time.After(awaitTimeout):
	}
	return f.KnowsTimeline()
}

// KnowsTimeline says whether answers can be judged by the timeline that the fleet follows.
func (f *Followed) KnowsTimeline() bool {
	if f.Known == nil {
		return true
	}
	select {
	case <-f.Known:
		return true
	default:
		return false
	}
}

// OldTimeline returns a TimelineError if the node's server is on an older timeline than the
// fleet follows; nil = it is not, as far as is known.
func (f *Followed) OldTimeline() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server.Timeline != 0 && f.server.Timeline < f.newest {
		return &TimelineError{Server: f.server.Timeline, Fleet: f.newest}
	}
	return nil
}

// Refuse returns why an answer is not accepted as that of the primary; nil = it is accepted.
// startedAt is when the followed primary was started, as the last proof said when
// the question was asked; empty = there was no proof.
//
// Invariant, in every mode: an accepted answer never comes
//   - from a server in recovery: its snapshot does not say which changes it lacks;
//   - from another database than the fleet's: a pooler may lead to another one on the same
//     server;
//   - from another run than the followed one, while there is a proof: it may be an old
//     primary that still runs;
//   - from an older timeline than the fleet has followed.
//
// A restarted primary and a later timeline are accepted as soon as there is no proof of the
// old run: a freshness bound after its last heartbeat. So neither a restart nor a failover
// needs an exception. Another system is accepted once it is the node's server (SetServer).
func (f *Followed) Refuse(s Server, startedAt string) error {
	if s.Timeline == 0 {
		return fmt.Errorf("%s is a standby", s.Address)
	}
	if err := f.RefuseDatabase(s); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case startedAt == "" && s.Timeline < f.newest:
		return fmt.Errorf("%s: %w", s.Address, &TimelineError{Server: s.Timeline, Fleet: f.newest})
	case startedAt != "" && startedAt != s.StartedAt:
		return fmt.Errorf("%s, started %s, is not the server that is followed: timeline %d, started %s", s.Address, asTime(s.StartedAt), f.newest, asTime(startedAt))
	}
	return nil
}

// RefuseDatabase returns an error if the answer comes from another database than the fleet's.
func (f *Followed) RefuseDatabase(s Server) error {
	if identity, known := f.Identity(); known && s.Name != identity.Name {
		return fmt.Errorf("%s is database %s, and not %s", s.Address, s.Name, identity.Name)
	}
	return nil
}

// OldTimelineRemedy is what an operator can do about an old timeline.
func (f *Followed) OldTimelineRemedy() string {
	return "connect the node to the new primary; if a copy of the server has taken over, such as a restored backup, give its nodes a Redis of their own; " +
		"to return to the older timeline for good, stop all nodes, delete " + f.EpochKey() + " in Redis, and start them"
}

// TimelineError: a server is on an older timeline than the fleet follows. It is not the
// primary any more, or its files were restored.
type TimelineError struct {
	Server, Fleet uint32
}

func (e *TimelineError) Error() string {
	return fmt.Sprintf("the database server is on timeline %d; the fleet follows timeline %d", e.Server, e.Fleet)
}

// EpochName is the unique name of an epoch. All parts but the timeline are words without
// dots.
type EpochName struct {
	Identity  string // the digest of what is followed
	Timeline  uint32 // of the primary: a promoted standby's is higher than that of the primary it replaces
	Instance  string // digest of the primary's timeline and run, which a crash changes, too
	Published string // digest of the publication's definition
	Random    string
}

func (n EpochName) String() string {
	return strings.Join([]string{n.Identity, strconv.FormatUint(uint64(n.Timeline), 10), n.Instance, n.Published, n.Random}, ".")
}

// ParseEpoch reads what String wrote; ok is false for any other name.
func ParseEpoch(name string) (n EpochName, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 5 {
		return EpochName{}, false
	}
	timeline, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return EpochName{}, false
	}
	return EpochName{parts[0], uint32(timeline), parts[2], parts[3], parts[4]}, true
}

const (
	// ClaimEvery is how often a node that has joined renews its claim.
	ClaimEvery = 5 * time.Second
	// claimLife is how long Redis keeps the record of a fleet after its last node has stopped.
	claimLife = 15 * time.Second
)

// Claim is a node's claim that the fleet of its region follows the node's database. Redis
// has the record of which one the fleet follows. Not safe for use by several goroutines.
type Claim struct {
	client   redis.UniversalClient
	followed *Followed

	joined string    // the digest of the database with which the node has joined; empty = it has not
	other  string    // the database that the fleet follows and this node does not; empty = none
	vacant time.Time // since when a refused node has found no record; zero = it has found one
}

// NewClaim makes the claim of a node that has not joined a fleet.
func NewClaim(client redis.UniversalClient, followed *Followed) *Claim {
	return &Claim{client: client, followed: followed}
}

func (c *Claim) key() string { return c.followed.LogPrefix() + "fleet" }

// Renew joins the fleet, or renews its record, and returns the other database that the fleet
// follows; empty = the node has joined, or Redis has not answered yet. While Redis does not
// answer, its last answer holds.
//
// A node joins if no other database is recorded. A node that was refused waits for claimLife
// without a record: a Redis that restarts empty has none either, until the fleet renews it. A
// node that has joined replaces the record if its own database was replaced, because that of a
// whole fleet may be. Otherwise it is refused: the record is of a fleet that came after it.
func (c *Claim) Renew(ctx context.Context) (other string) {
	identity, known := c.followed.Identity()
	if !known {
		return c.other
	}
	args := redis.SetArgs{TTL: claimLife, Mode: "NX"}
	replaced := c.joined != "" && c.joined != identity.Digest()
	switch recorded, err := c.Other(ctx); {
	case errors.Is(err, redis.Nil) && c.other != "":
		if c.vacant.IsZero() {
			c.vacant = time.Now()
		}
		if time.Since(c.vacant) < claimLife {
			return c.other
		}
	case errors.Is(err, redis.Nil):
	case redis.HasErrorPrefix(errors.Unwrap(err), "WRONGTYPE"): // something damaged the record, so it says nothing
		args.Mode = ""
	case err != nil:
		c.vacant = time.Time{}
		return c.other
	case recorded == "" || replaced:
		args.Mode = ""
	default:
		c.joined, c.other, c.vacant = "", recorded, time.Time{}
		return c.other
	}
	err := c.client.SetArgs(ctx, c.key(), identity.Digest()+" "+identity.String(), args).Err()
	if errors.Is(err, redis.Nil) { // another node was first, maybe of another database
		return c.Renew(ctx)
	}
	if err == nil { // otherwise the next call sees why
		c.joined, c.other, c.vacant = identity.Digest(), "", time.Time{}
	}
	return c.other
}

// Other returns the other database that is recorded; empty = the node's own is.
// Errors: redis.Nil = none is recorded.
func (c *Claim) Other(ctx context.Context) (name string, err error) {
	recorded, err := c.client.Get(ctx, c.key()).Result()
	if err != nil {
		return "", fmt.Errorf("read which database the fleet follows: %w", err)
	}
	digest, name, _ := strings.Cut(recorded, " ")
	if digest == c.followed.Digest() {
		return "", nil
	}
	return name, nil
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
