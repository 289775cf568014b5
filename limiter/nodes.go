package limiter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	fleetKey = "rl:{fleet}:nodes" // one fleet per Redis database

	beatEvery = time.Second
	beatLife  = 3500 * time.Millisecond // a node that misses three beats is gone

	// coldNodes is the least number of nodes that a node reckons with until it has
	// counted for a while: the others may have started with it, and Redis may have
	// died before they were seen, or refuse to be written to.
	coldNodes = 8
)

// beatScript notes that a node (ARGV[1]) lives, for ARGV[2] microseconds by
// Redis' clock, or with 0 that it leaves, and answers how many do.
const beatScript = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 60000)
return redis.call('ZCARD', KEYS[1])
`

// LiveNodes is how many nodes beat in a Redis, as its own clock has it.
func LiveNodes(ctx context.Context, client redis.UniversalClient) (int64, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its time: %w", err)
	}
	n, err := client.ZCount(ctx, fleetKey, strconv.FormatInt(now.UnixMicro(), 10), "+inf").Result()
	if err != nil {
		return 0, fmt.Errorf("count the nodes: %w", err)
	}
	return n, nil
}

// fleet counts the nodes that share the buckets, so that each knows its part of
// them while Redis is away: the count from before is what it then goes by.
type fleet struct {
	client redis.UniversalClient
	id     string
	size   atomic.Int64          // the most of the last counts; 0 = not known yet
	known  atomic.Bool           // there are as many counts as are remembered, so that others have been seen
	counts [4]int64              // the latest first; by the beating goroutine alone
	late   int                   // beats in a row; by the beating goroutine alone
	failed atomic.Pointer[error] // why the last beat did, or nil

	stop, ended chan struct{}
}

// nodes is how many to reckon with: as last counted, or enough.
func (f *fleet) nodes() int64 {
	if f.known.Load() {
		return f.size.Load()
	}
	return max(f.size.Load(), coldNodes)
}

func (l *Limiter) openFleet(client redis.UniversalClient, id string) {
	l.fleet = &fleet{client: client, id: id, stop: make(chan struct{}), ended: make(chan struct{})}
	go l.fleet.run()
}

func (f *fleet) run() {
	defer close(f.ended)
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		f.beat(beatLife)
		select {
		case <-tick.C:
		case <-f.stop:
			f.beat(0)
			return
		}
	}
}

// beat says that this node lives, and counts. A lost one needs no second try:
// the next one is near.
func (f *fleet) beat(life time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
	defer cancel()
	n, err := f.client.Eval(ctx, beatScript, []string{fleetKey}, f.id, life.Microseconds()).Int64()
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		f.late++
	} else {
		f.late = 0
	}
	if f.late != 1 { // a single one that is late says nothing
		f.failed.Store(&err)
	}
	if err == nil && life > 0 {
		f.counted(n)
	}
}

// counted notes a count. A Redis that has come back empty counts anew, and the
// first to ask alone: so the last few counts are remembered, for as long as a
// node that is gone is.
func (f *fleet) counted(n int64) {
	copy(f.counts[1:], f.counts[:])
	f.counts[0] = n
	f.size.Store(slices.Max(f.counts[:]))
	f.known.Store(f.counts[len(f.counts)-1] > 0)
}

func (f *fleet) leave(again bool) {
	if !again {
		close(f.stop)
	}
	<-f.ended
}
