package limiter_test

import (
	"testing"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

// alone returns a full lease of the only node of a fleet.
func alone(p Policy, now int64) (*lease.Lease, *lease.Fleet) {
	l := new(lease.Lease)
	l.Init(p, now)
	return l, &lease.Fleet{Nodes: 1, Link: &lease.Link{Budget: DefaultBudget.Microseconds()}}
}

// Where Redis is slow, waiting requests lease their tokens; not where the burst is small beside the fleet.
func TestNothingIsLeasedOfABurstSmallBesideTheFleet(t *testing.T) {
	for nodes, want := range map[int64]int64{6: 1, 7: 0} {
		l, f := alone(policy(t, 10, 20), 1)
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
	l, f := alone(policy(t, 10, 20), 1)
	c := lease.Call{Reply: lease.Reply{Leased: 2, Level: 1_900_000, Held: 18, Lasts: lease.Slice}}
	l.Complete(&c, 1, 1, f)
	for range 2 {
		l.Take(1)
	}
	if l.Inspect(90_000, f).Due || !l.Inspect(110_000, f).Due {
		t.Error("it hears too early, or too late")
	}
}
