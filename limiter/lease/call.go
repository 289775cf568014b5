package lease

import (
	"math"
	"sync/atomic"
)

// These constants are the same in the script. Times are microseconds.
const (
	// Slice is the least time for which the bucket counts a lease as held. It counts a
	// lease in the slice of the lease and in the next: for at most two Slices.
	Slice = 10_000_000

	// MissingAfter is the time after a node's last heartbeat by which the others
	// withhold its part of the rate. Until then it must not refill a fallback bucket.
	MissingAfter = 1_850_000

	// MemberLife is for how long a node that sends no heartbeats counts as a member of
	// the fleet, whose part is withheld.
	MemberLife = 60_000_000

	FairShare = 1.03125 // this multiple of the rate is divided among the nodes, so that none of the rate is left over
)

// DemandSpan is the time constant of the fleet's demand, in microseconds: long enough to compare
// nodes, and short enough that a flood is soon forgotten.
const DemandSpan = 6_000_000

// Call is one call of the script for one bucket: its arguments and its reply.
type Call struct {
	Policy Policy // the caller's

	Need  int64 // tokens for waiting requests; the bucket grants as many of them as it has
	Hold  int64 // 1 = granted tokens count as held, too, because the answer takes long
	Extra int64 // further tokens to lease, if all of Need is granted

	Arrived int64 // requests at this node since its last report
	Fair    int64 // 1 = Need and Extra are this node's share of what is scarce

	// Of the tokens leased in Slice, ReleasedNow are no longer held; of those leased in the
	// slice before, ReleasedBefore.
	Slice, ReleasedNow, ReleasedBefore int64

	Returned int64 // tokens to give back
	Debt     int64 // tokens spent without Redis, to be debited

	Nodes, Silent int64 // see Fleet

	// Until is when its sender gives up, by Redis' clock; 0 = unknown. Executed later, it gets no
	// tokens: they would count as held, and nobody would spend them.
	Until int64

	Reply
}

// Reply is the script's answer: what it gave, and the state of the bucket.
type Reply struct {
	Granted int64 // of Need
	Leased  int64 // of Extra
	Level   int64 // micro-tokens that are left in the bucket
	Wait    int64 // microseconds until there is a token; 0 when there is one
	Slice   int64 // the number of the bucket's present slice
	Lasts   int64 // microseconds for which a lease of now counts as held
	Held    int64 // tokens that nodes hold, this one included
	Demand  int64 // thousandths of requests at all nodes in the last DemandSpan, decaying
}

// Arguments returns the numbers of the call in the order in which the script reads them.
func (c *Call) Arguments() []int64 {
	return []int64{c.Policy.Rate, c.Policy.Burst, c.Policy.Version, c.Need, c.Hold, c.Extra, c.Arrived, c.Fair,
		c.Slice, c.ReleasedNow, c.ReleasedBefore, c.Returned, c.Debt, c.Nodes, c.Silent, c.Until}
}

// ReplyOf reads the script's answer.
func ReplyOf(n []int64) Reply {
	return Reply{Granted: n[0], Leased: n[1], Level: n[2], Wait: n[3], Slice: n[4], Lasts: n[5], Held: n[6], Demand: n[7]}
}

// Fleet is what a node knows about its fleet at one moment.
type Fleet struct {
	Nodes         int64 // that share the buckets
	Silent        int64 // the share of each rate that those of them may be using that send no heartbeats, in micro-tokens of a token
	LastPresentAt int64 // when this node last sent a heartbeat that may have reported it present
	Ahead         int64 // Redis' clock is ahead of this node's by at most so much; Forever = unknown
	Cold          bool  // this node has not counted the others yet
	Link          *Link // how long Redis takes to answer it
}

// parts is into how many parts each bucket is divided; one of them is this node's.
func (f *Fleet) parts() int64 { return max(1, f.Nodes) }

// MaxWait bounds how long a request waits for a slow Redis, in microseconds. It also
// bounds the age of an answer that admits requests if the bucket is not leased from.
const MaxWait = 125_000

// Link measures how long Redis takes to answer, in microseconds. From this follow how
// long a request waits, how early a lease is fetched, and whether tokens are granted or
// leased. The measure rises at once and falls slowly.
type Link struct {
	Budget int64        // a request waits at least this long
	recent atomic.Int64 // the measure
}

// Record adds a measurement.
func (k *Link) Record(took int64) {
	recent := k.recent.Load()
	k.recent.Store(max(took, recent-(recent-took)/8))
}

// Wait is how long a request waits for an answer: two round trips, because the call in
// flight may not include the request.
func (k *Link) Wait() int64 { return max(k.Budget, min(2*k.recent.Load(), MaxWait)) }

// slow reports whether an answer takes longer than Budget. Then tokens for waiting
// requests are leased and not granted, so that a late answer is of use.
func (k *Link) slow() bool { return k.Wait() > k.Budget }

const (
	// A node makes no call to an empty bucket before it has a token again, or before this
	// pause is over. Otherwise a flood of requests would cost a call for each token.
	pause = 40_000 // microseconds

	// maxHeld bounds the tokens that a node holds of one bucket.
	maxHeld = 1 << 30

	// All in microseconds.
	prefetchAhead = 2_000     // the next lease is fetched this long before the present one is spent
	minIdle       = 100_000   // an idle lease of a busy key is given back after this time,
	maxIdle       = 2 * Slice // one of a key with few requests ends by itself before that

	sparse = 4 // fewer requests in a Slice: a key with few requests
)

// demand counts the requests for a bucket at this node. It expects as many in the next Slice
// as in the last one.
type demand struct {
	at     int64   // when record was last called
	recent float32 // requests in one Slice
	own    float32 // requests in the last DemandSpan, decaying, as the bucket counts those of all nodes
}

// record counts n requests since the last call. recent is a sliding window.
func (d *demand) record(n float32, now int64) {
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	d.own = d.own*float32(max(0, DemandSpan-dt))/DemandSpan + n
	if dt >= Slice {
		d.recent = n * Slice / float32(dt)
		return
	}
	d.recent = n + d.recent*(1-float32(dt)/Slice)
}

// expected is how many requests to lease tokens for: those of the next 1.25 s, but at
// least the square root of recent. A key with few requests gets few tokens, to keep until
// the lease ends.
func (d *demand) expected(few int64) int64 {
	if d.recent < sparse {
		return few
	}
	return int64(math.Ceil(max(float64(d.recent)/8, math.Sqrt(float64(d.recent)))))
}
