package cache

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// redisTier is the second tier: pages that other nodes have stored in Redis, or this node
// before a restart.
//
// Invariants:
//   - a call makes a request wait for at most redisBudget, and not at all while the
//     breaker is open;
//   - the names of keys contain the digest of the database, because the database of a
//     fleet may be replaced. Until the database is known, Redis is not used.
type redisTier struct {
	*Cache
	client  redis.UniversalClient
	breaker *gobreaker.CircuitBreaker[any]

	budget, storeBudget time.Duration
	async               chan struct{} // one element for each call in the background

	calls, failures, corrupt, dropped atomic.Uint64

	answered  atomic.Bool           // a call has succeeded
	lastError atomic.Pointer[error] // of the last call that failed
	refused   changefeed.Refusals   // the last error that Redis answered with
}

const (
	// redisBudget is the longest that a request waits for a call to Redis. A Redis in
	// the local network answers in well under a millisecond. The alternative, a query
	// to Postgres, takes a few.
	redisBudget = 20 * time.Millisecond
	// redisStoreBudget is for storing, which no request waits for.
	redisStoreBudget = 250 * time.Millisecond
	// redisTimeout bounds a call after its request has stopped waiting: see withinBudget.
	redisTimeout = time.Second
	// maxRedisEntry is the largest entry that is stored, in bytes. To read an entry of
	// several megabytes takes longer than redisBudget, which counts as a failure: a
	// few such entries would open the breaker for all others.
	maxRedisEntry = 1 << 20
	// maxRedisValue is how much of a value is read, in bytes. It is more than a stored
	// entry needs, with its metadata.
	maxRedisValue = 2 * maxRedisEntry
	// maxAsync bounds calls in the background. Calls beyond it are dropped: Redis
	// is then the bottleneck, and storing one more entry there gains little.
	maxAsync = 64
	// claimLife is how long a claim keeps other nodes from the same query: longer than one
	// usually takes. If the node with the claim dies, they wait for the sum of fleetWaits.
	claimLife = 150 * time.Millisecond

	// the names of keys continue with one of these after Followed.Prefix
	pagePrefix, claimPrefix = "page:", "fill:"
)

var errNoDatabase = errors.New("the database is not known")

var errNoAnswer = fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)

// newRedisTier makes a tier. It waits up to redisTimeout for a connection.
func newRedisTier(c *Cache) *redisTier {
	r := &redisTier{Cache: c, client: c.options.Redis, budget: redisBudget, storeBudget: redisStoreBudget, async: make(chan struct{}, maxAsync)}
	r.breaker = gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name:        "redis pages",
		MaxRequests: 1,
		Timeout:     250 * time.Millisecond, // then one request probes
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
	})
	_, _ = withinBudget(r, redisTimeout, r.tryRead)
	return r
}

// store sends the pages of what was read to Redis, each under its own key, and then lets
// other nodes fill the first.
func (r *redisTier) store(q *page.Query, p reading) {
	r.background(func() {
		for q, page := range p.pages(q) {
			r.set(q.AppendKey(nil), page, r.life())
		}
		if r.following.Load() {
			r.release(q.AppendKey(nil))
		}
	})
}

// background makes a call to Redis in the background. It drops the call if maxAsync calls
// are in flight.
func (r *redisTier) background(call func()) {
	if r == nil {
		return
	}
	select {
	case r.async <- struct{}{}:
	default:
		r.dropped.Add(1)
		return
	}
	r.running.Go(func() {
		defer func() { <-r.async }()
		call()
	})
}

// RedisCommands returns the commands that a node sends to Redis for entries, so that a
// caller can find out whether Redis permits them. Their keys begin with own.
func RedisCommands(own string) [][]any {
	entry, claim := own+":page", own+":fill"
	life := claimLife.Milliseconds()
	return [][]any{
		{"set", entry, "x", "px", life},
		{"pttl", entry},
		{"getrange", entry, 0, maxRedisValue},
		{"set", claim, 1, "px", life, "nx"},
		{"del", entry},
		{"del", claim},
	}
}

// get returns the page that is stored under key. It returns nil if Redis has no value, or a
// value that is not this page. readAt follows from the age that decode returns. An error says
// that Redis was not asked, or did not answer, or refused.
func (r *redisTier) get(key []byte) (*reading, error) {
	return callFor(r, r.budget, pagePrefix, key, func(ctx context.Context, name string) (*reading, error) {
		var value *redis.StringCmd
		var remaining *redis.DurationCmd
		now := time.Now()
		_, err := r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			// In this order: a page that is replaced in between looks too old, never too young.
			remaining = pipe.PTTL(ctx, name)
			value = pipe.GetRange(ctx, name, 0, maxRedisValue) // of a value that is too long, the beginning; empty = there is none
			return nil
		})
		if remaining.Err() != nil {
			return nil, err
		}
		b, err := value.Bytes()
		switch {
		case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
			return nil, err
		case err == nil && len(b) == 0:
			return nil, nil
		case err == nil && len(b) <= maxRedisValue:
			if found, age := decode(b, key, remaining.Val(), now); found != nil {
				found.readAt = r.clock.Of(now) - age
				return found, nil
			}
		}
		r.corrupt.Add(1)
		return nil, nil
	})
}

// set stores the page until life after it was read, unless it is too large.
func (r *redisTier) set(key []byte, p *reading, life time.Duration) {
	now := time.Now()
	age := r.clock.At(now) - p.readAt
	if life-age < time.Millisecond {
		return
	}
	value := p.encode(key, life, now.Add(-age))
	if len(value) > maxRedisEntry {
		r.dropped.Add(1)
		return
	}
	_, _ = callFor(r, r.storeBudget, pagePrefix, key, func(ctx context.Context, name string) (string, error) {
		return r.client.Set(ctx, name, value, life-age).Result()
	})
}

// claim tries to claim the fill of the key's entry for this node. It returns false if
// another node has claimed it.
func (r *redisTier) claim(key []byte) (bool, error) {
	return callFor(r, r.budget, claimPrefix, key, func(ctx context.Context, name string) (bool, error) {
		return r.client.SetNX(ctx, name, 1, claimLife).Result()
	})
}

// release gives a claim up.
func (r *redisTier) release(key []byte) {
	_, _ = callFor(r, r.storeBudget, claimPrefix, key,
		func(ctx context.Context, name string) (int64, error) { return r.client.Del(ctx, name).Result() })
}

// tryRead makes the same call as a read of an entry, to see whether it succeeds.
func (r *redisTier) tryRead(ctx context.Context) (string, error) {
	return r.client.GetRange(ctx, r.options.Followed.Prefix()+pagePrefix, 0, maxRedisValue).Result()
}

// failure returns why entries are not read from Redis or not stored there; nil = they are.
func (r *redisTier) failure() error {
	if err := r.lastError.Load(); err != nil && (r.breaker.State() != gobreaker.StateClosed || !r.answered.Load()) {
		return *err
	}
	return r.refused.Latest()
}

// callFor makes one call for a page's key, and passes its name in Redis. The name has the digest
// of the database: while that is not known, it returns errNoDatabase.
func callFor[T any](r *redisTier, budget time.Duration, prefix string, key []byte,
	call func(ctx context.Context, name string) (T, error)) (v T, err error) {
	digest := r.options.Followed.Digest()
	if digest == "" {
		return v, errNoDatabase
	}
	name := r.options.Followed.Prefix() + prefix + digest + ":" + string(key)
	return callRedis(r, budget, func(ctx context.Context) (T, error) { return call(ctx, name) })
}

// callRedis makes one call behind the breaker, and waits for it within the budget.
func callRedis[T any](r *redisTier, budget time.Duration, call func(context.Context) (T, error)) (v T, err error) {
	_, failure := r.breaker.Execute(func() (any, error) {
		r.calls.Add(1)
		v, err = withinBudget(r, budget, call)
		if isRedirect(err) {
			return nil, nil
		}
		return nil, r.refused.Note(err)
	})
	if failure != nil {
		r.failures.Add(1)
	}
	return v, cmp.Or(err, failure)
}

// withinBudget makes a call in its own goroutine, and waits for it within the budget.
// After the budget the call continues: it may have to open a connection (TCP, TLS,
// HELLO, AUTH). If it were cancelled, the next call would have to open one again.
func withinBudget[T any](r *redisTier, budget time.Duration, call func(context.Context) (T, error)) (v T, err error) {
	type answer struct {
		v   T
		err error
	}
	answers := make(chan answer, 1)
	r.running.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, max(budget, redisTimeout))
		defer cancel()
		v, err := protect(func() (T, error) { return call(ctx) })
		if hasEnded(err) {
			for idle := r.idleConnections(); idle > 0 && hasEnded(err) && ctx.Err() == nil; idle-- {
				v, err = protect(func() (T, error) { return call(ctx) })
			}
		}
		answers <- answer{v, err}
	})
	timer := time.NewTimer(budget)
	defer timer.Stop()
	select {
	case a := <-answers:
		v, err = a.v, a.err
	case <-timer.C:
		err = errNoAnswer
	}
	if err != nil {
		r.lastError.Store(&err)
	} else {
		r.answered.Store(true)
	}
	return v, err
}

func (r *redisTier) idleConnections() (n uint32) {
	stats := r.client.PoolStats()
	n = stats.IdleConns
	if stats.PipelineStats != nil {
		n += stats.PipelineStats.IdleConns
	}
	return n
}

// hasEnded reports whether the error is the end of an open connection, and not a failure
// to open one or a timeout. After a restart of Redis all idle connections have ended.
// Under TLS the client notices that only when it uses the connection.
func hasEnded(err error) bool {
	broken := (*net.OpError)(nil)
	return errors.Is(err, io.EOF) || errors.As(err, &broken) && broken.Op != "dial" && !broken.Timeout()
}

// isRedirect reports whether a server of a Redis Cluster answered that another server
// has the key. The breaker does not count that as a failure.
func isRedirect(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, moving := redis.IsAskError(err)
	return moved || moving || redis.IsTryAgainError(err)
}

// reading is what was read of a page, or of several in a row, as Redis has it, too.
type reading struct {
	page.Read
	epoch  string        // of the log; empty = changes were not followed
	readAt time.Duration // when reading began, on the node's clock
}

// pages cuts what was read into pages, the query's first and then those behind it. Each has the
// row after it, if there is one. Rows at the end that may be only a part of a page are left out.
func (p *reading) pages(q *page.Query) iter.Seq2[*page.Query, *reading] {
	return func(yield func(*page.Query, *reading) bool) {
		for rows := p.Rows; ; {
			n := firstPage(rows, q.Limit)
			last := n == len(rows)
			if last && !p.End {
				return
			}
			page := *p
			page.Rows, page.End = rows[:min(n+1, len(rows))], p.End && n+1 >= len(rows)
			if !yield(q, &page) || last {
				return
			}
			behind := q.Behind(&rows[n-1])
			q, rows = &behind, rows[n:]
		}
	}
}

// In Redis a page is the rows that a statement returned, with its read point, as in the log of changes:
//
//	magic 4 | CRC-32 of the rest 4 | stored, in JSON | line feed | rows, by list.AppendRows
//
// A node that takes the page applies the changes that the read point does not see. The magic
// ends in the version. A page of another version is a miss. Who changes this form, or a field of
// stored, raises the version. So does who changes the JSON of a row:
// TestTheJSONOfRowsInRedisBelongsToTheirMagic (origin) fails until then.
const (
	magic      = "lep\x08"
	headerSize = len(magic) + 4
)

// stored is what Redis has of a page besides its rows.
type stored struct {
	Key    []byte
	Life   time.Duration // the expiry that was set in Redis, counted from ReadAt
	ReadAt time.Time     // by the writer's wall clock
	Epoch  string
	At     changefeed.ReadPoint
	End    bool // the list ends with the page
}

// redisTick is the unit of Redis' clock, which rounds the remaining life up.
const redisTick = time.Millisecond

// encode returns the page in the form above. Redis keeps it for life, counted from readAt.
func (p *reading) encode(key []byte, life time.Duration, readAt time.Time) []byte {
	head, _ := json.Marshal(stored{key, life, readAt.UTC(), p.epoch, p.At, p.End}) // all of it can be encoded
	b := append(make([]byte, headerSize, 1024), head...)
	b = list.AppendRows(append(b, '\n'), p.Rows)
	copy(b, magic)
	binary.BigEndian.PutUint32(b[len(magic):], crc32.ChecksumIEEE(b[headerSize:]))
	return b
}

// decode reads what encode wrote, and returns the page and its age; nil = it is not a page of this
// key and version. remaining is how long Redis will still keep it. now is the reader's wall clock
// before it sent the command.
//
// The age is the larger of two estimates. The first is the part of the life that Redis
// has counted down: it compares no clocks, but is too small by the delay with which the
// page reached Redis. The second is the difference of the wall clocks: it is wrong by
// their skew. So the age is too small only if both estimates are, and then by the
// smaller error.
func decode(b, key []byte, remaining time.Duration, now time.Time) (p *reading, age time.Duration) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic || binary.BigEndian.Uint32(b[len(magic):]) != crc32.ChecksumIEEE(b[headerSize:]) {
		return nil, 0
	}
	head, tail, _ := bytes.Cut(b[headerSize:], []byte{'\n'})
	var s stored
	if json.Unmarshal(head, &s) != nil || !bytes.Equal(s.Key, key) {
		return nil, 0
	}
	rows, rest, ok := list.ParseRows(tail)
	if !ok || len(rest) > 0 {
		return nil, 0
	}
	return &reading{Read: page.Read{Rows: rows, End: s.End, At: s.At}, epoch: s.Epoch}, max(s.Life-remaining+redisTick, now.Sub(s.ReadAt), 0)
}
