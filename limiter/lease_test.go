package limiter_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"listedge/internal/world"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// bucket is one in a Redis whose time is the test's, in microseconds.
type bucket struct {
	*world.Redis
	now *int64
}

func (b bucket) execute(c *lease.Call, now int64) {
	*b.now = now
	c.Reply = lease.ReplyOf(run(b.Redis, TokenBucketText, "b", Pack(c.Arguments()...)))
}

// held is how many tokens count as held at a time.
func (b bucket) held(p Policy, now int64) int64 {
	*b.now = now
	return look(b.Redis, "b", p).Held
}

// alone returns a bucket that is full, and the lease of the only node of its fleet.
func alone(p Policy, now int64) (b bucket, l *lease.Lease, f *lease.Fleet) {
	b.now, l = new(int64), new(lease.Lease)
	b.Redis = world.NewRedis("bucket", func() time.Time { return time.UnixMicro(*b.now) })
	l.Init(p, now)
	return b, l, &lease.Fleet{Nodes: 1, Link: &lease.Link{Budget: DefaultBudget.Microseconds()}}
}

// called has a bucket execute a call of the lease, if there is one.
func called(b bucket, l *lease.Lease, f *lease.Fleet, waiting, now int64) {
	var c lease.Call
	if l.Begin(&c, waiting, now, f, false) {
		b.execute(&c, now)
		l.Complete(&c, now, now, f)
	}
}

// A lease ends at its node before it ages in the bucket.
func TestALeaseEndsBeforeItAges(t *testing.T) {
	p := policy(t, 50, 100)
	for start := int64(1); start < 2*lease.Slice; start += 2_499_983 {
		b, l, f := alone(p, start)
		for range 5 { // comes often enough to be leased for
			l.Take(start)
			called(b, l, f, 1, start)
			l.Retry(start)
		}
		ended, aged := int64(0), int64(0)
		for now := start; aged == 0; now += 10_000 {
			if ended == 0 && l.Holds(now) == 0 {
				ended = now
			}
			if b.held(p, now) == 0 {
				aged = now
			}
		}
		if ended == 0 || aged-ended < 350_000 || aged-start < lease.Slice {
			t.Fatalf("leased at %d: ended after %d us, aged after %d", start, ended-start, aged-start)
		}
	}
}

// Whatever a node reports as spent, the bucket goes on holding what the node may still spend.
func TestTheBucketHoldsWhatALeaseMaySpend(t *testing.T) {
	random, p, now := rand.New(rand.NewPCG(1, 31)), policy(t, 1_000, 1_000), int64(1)
	b, l, f := alone(p, now)
	for range 2_000 {
		now += random.Int64N(lease.Slice / 8)
		for range random.Int64N(200) {
			l.Take(now)
		}
		called(b, l, f, 0, now)
		if held := b.held(p, now); held < l.Holds(now) {
			t.Fatalf("the bucket holds %d, and the node %d", held, l.Holds(now))
		}
	}
}

// Where Redis is slow, waiting requests lease their tokens; not where the burst is small beside the fleet.
func TestNothingIsLeasedOfABurstSmallBesideTheFleet(t *testing.T) {
	for nodes, want := range map[int64]int64{6: 1, 7: 0} {
		_, l, f := alone(policy(t, 10, 20), 1)
		f.Nodes = nodes
		f.Link.Record(50_000)
		var c lease.Call
		if l.Begin(&c, 1, 1, f, false); c.Hold != want {
			t.Errorf("%d nodes: hold %d, want %d", nodes, c.Hold, want)
		}
	}
}

// What was spent of a lease is reported soon if the bucket is about to fill up to what is held.
func TestADrainedBucketHearsSoonWhatWasSpent(t *testing.T) {
	_, l, f := alone(policy(t, 10, 20), 1)
	c := lease.Call{Reply: lease.Reply{Leased: 2, Level: 1_900_000, Held: 18, Lasts: lease.Slice}}
	l.Complete(&c, 1, 1, f)
	for range 2 {
		l.Take(1)
	}
	if l.Inspect(90_000, f).Due || !l.Inspect(110_000, f).Due {
		t.Error("it hears too early, or too late")
	}
}
