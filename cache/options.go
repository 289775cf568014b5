package cache

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/page"
)

// Reader reads pages, and pages behind them, from the database. Its methods end soon after ctx does.
type Reader interface {
	// Fetch reads from the primary. run is when that was started; empty = not known. It returns
	// page.ErrWrongServer if another server answered.
	Fetch(ctx context.Context, q page.Query, run string) (page.Read, error)
	// FetchFromStandby reads from a standby of the primary. After any error the page is read from
	// the primary.
	FetchFromStandby(ctx context.Context, q page.Query, primary changefeed.Proof) (page.Read, error)
	// FetchRows reads the rows of keys (list.Row.Key) that the query's list has from the primary, in the order of the
	// keys: one that the list does not have has none. Without Read.End nothing is known of the keys behind that of the
	// last row. page.ErrRow: the first row cannot be shown.
	FetchRows(ctx context.Context, q page.Query, keys []string, run string) (page.Read, error)
	// Verify reads what Fetch does, with Read.Misfold, if the primary has nothing else to do; else it returns an error.
	Verify(ctx context.Context, q page.Query, run string) (page.Read, error)
	HasStandbys() bool
}

// Options configure a Cache. All but Rows, Room, Redis, Bound and Hurry are required.
type Options struct {
	Origin      Reader
	Memory      int64                 // budget in bytes
	Rows        *replica.Budgets      // of the rows in memory; nil = shares of Memory
	Room        Room                  // zero = as much as responses have
	Redis       redis.UniversalClient // nil = no second tier
	Followed    *fleet.Followed       // the database whose changes are followed
	TTL         time.Duration         // how long an entry is fresh where changes are not followed
	Bound       time.Duration         // no entry served as fresh omits a commit older than this; 0 = changes are not followed
	MaxStale    time.Duration         // how long a stale entry may be served if the origin fails
	FillTimeout time.Duration         // how long a fill may take
	Clock       *boottime.Clock       // measures the age of entries and proofs

	CommitApplied func(lag time.Duration)   // is called with the time from a commit until it was applied
	Mismatched    func(m Mismatch)          // is called if rows differ from those of the database, at most once a heartbeat
	Hurry         func(ctx context.Context) // asks the follower for heartbeats, for requests that wait for a proof; nil = they wait
}

// Mismatch is where rows of the cache are not those of the database.
type Mismatch = replica.Mismatch

// ErrFillTimeout: the fill did not end in time, and there was no stale entry.
var ErrFillTimeout = errors.New("no page in time")

// ErrNotStored: neither memory nor Redis has a fresh entry, and Stored does not read the origin.
var ErrNotStored = errors.New("the page is not stored")

// budgets are those of the rows in memory, which have so many bytes unless Rows says otherwise.
func (o *Options) budgets(rows int) replica.Budgets {
	if o.Rows != nil {
		return *o.Rows
	}
	return replica.Budgets{Rows: rows, Changes: rememberedBytes, Parked: parkedBytes, IDs: int(o.Memory / idsShare), Lists: maxLists,
		Released: rows / releasedShare}
}
