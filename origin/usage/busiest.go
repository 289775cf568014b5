package usage

import (
	"cmp"
	"slices"
)

// Use is how much a key is used on this node.
type Use struct {
	Key
	Requests, Refused float64 // per second; refused = answered with a 429
}

// busiest are the ten keys with the most requests, the busiest first.
type busiest []Use

// add adds a use. A key that has several counters is one of the busiest with their sum.
func (b *busiest) add(u Use) {
	if i := slices.IndexFunc(*b, func(o Use) bool { return o.Key == u.Key }); i >= 0 {
		u.Requests, u.Refused = u.Requests+(*b)[i].Requests, u.Refused+(*b)[i].Refused
		*b = slices.Delete(*b, i, i+1)
	}
	at, _ := slices.BinarySearchFunc(*b, u, func(a, b Use) int { return cmp.Compare(b.Requests, a.Requests) })
	*b = slices.Insert(*b, at, u)
	*b = (*b)[:min(len(*b), 10)]
}

// Busiest returns the keys with the most requests of the last interval.
func (r *Recorder) Busiest() []Use {
	if last := r.busiest.Load(); last != nil {
		return *last
	}
	return nil
}
